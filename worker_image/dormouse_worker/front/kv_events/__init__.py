"""What routers of others are told of the KV cache."""
