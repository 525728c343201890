"""Carries decisions out: at the API server, at workers. It decides nothing."""
