"""vLLM's engine as a worker's engine process. Only `core` imports vLLM."""
