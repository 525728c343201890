"""A file of requests, sent to a gateway, and the file of their answers: OpenAI's batch format."""
