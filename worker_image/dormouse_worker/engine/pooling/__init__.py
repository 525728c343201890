"""Who computes next where passes give vectors: calls in line, whole texts in a pass."""
