"""The program that decodes sound, which comes from anybody, and makes features of it. Imports no torch."""
