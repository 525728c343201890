"""Our own forward pass for the dense decoder family: one model's weights, far fewer calls than transformers makes."""
