"""Text and tokens: tokenizer, chat templates, streamed text, stop strings. No gRPC."""
