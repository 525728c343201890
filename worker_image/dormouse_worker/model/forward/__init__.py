"""The ways to compute a forward pass, and the one place that chooses among them."""
