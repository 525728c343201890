"""Encoders and decoders that make vectors, labels or scores, computed by our kernels: no torch, no transformers."""
