"""Paged attention: the seam to transformers, the description of a batch, and the backends that compute it."""
