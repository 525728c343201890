"""A call's way from worker to worker, without a token twice or lost."""
