"""One Decide call: what it asks, how the model reads it, and what its log-probabilities come to."""
