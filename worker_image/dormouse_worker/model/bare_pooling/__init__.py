"""Encoders that make vectors, computed by our kernels: no torch, no transformers."""
