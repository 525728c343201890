"""Protocols of others that a part of ours speaks: the messages and fields that it needs, under their own numbers."""
