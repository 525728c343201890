"""Metrics, spans and log lines. Nothing here is done per token but plain counting."""
