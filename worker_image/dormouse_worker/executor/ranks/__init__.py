"""A group of ranks: how they come together, are ordered, and end together."""
