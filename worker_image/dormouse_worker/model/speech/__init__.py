"""Whisper on tensors: loader, encoder and decoder, the cache of places for windows, and the rules of its tokens."""
