"""Questions that are answered by probabilities: OpenAI's /v1/decisions and vLLM's /v1/systemone."""
