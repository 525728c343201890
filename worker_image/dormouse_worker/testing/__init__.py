"""A fake engine without torch, as a program and within a test."""
