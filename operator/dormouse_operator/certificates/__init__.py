"""Mutual TLS: the authority, and a certificate for everybody who calls or is called."""
