"""Fakes, builders and servers for tests, shared with other packages' tests."""
