"""Asks a worker whether it keeps the worker protocol: `python -m dormouse_conformance ADDRESS`."""
