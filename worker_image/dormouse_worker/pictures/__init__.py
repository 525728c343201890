"""The program that decodes and processes images, which come from anybody, and nothing else. Imports no torch."""
