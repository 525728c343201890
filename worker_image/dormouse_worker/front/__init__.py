"""The front process: gRPC, tokenizing, metrics and the engine's supervision. Never imports torch or transformers."""
