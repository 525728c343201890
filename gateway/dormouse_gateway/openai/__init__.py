"""The OpenAI-compatible HTTP API: JSON in, `dormouse.v1` through the gateway's own proxy, JSON or events out."""
