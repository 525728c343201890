"""From logits to tokens: the same token for the same row, whatever else is in the batch."""
