"""What the API server tells: kopf's watches, the cache that holds it, whose model name is whose."""
