"""Canaries: deployments that take a share of another one's requests."""
