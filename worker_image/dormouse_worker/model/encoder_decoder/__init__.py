"""Encoder-decoder models of text on tensors: transformers' layers, over the paged cache."""
