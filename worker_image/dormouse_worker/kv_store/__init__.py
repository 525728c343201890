"""Blocks of the KV cache that outlive the engine: what a store promises, and one of files. Imports no torch."""
