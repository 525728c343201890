"""Requests that wait for a worker: the line, its limits, and what a client is told of its wait."""
