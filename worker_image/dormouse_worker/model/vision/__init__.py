"""Images on tensors: encoded by transformers' own vision tower, kept as rows, put in place of placeholder tokens."""
