"""GGUF files: what their headers say, and the files of a model's directory that are made of it. Imports no torch."""
