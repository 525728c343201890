"""What is measured and traced. The rest knows the seam `tracing` only."""
