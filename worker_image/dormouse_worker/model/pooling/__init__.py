"""Models whose passes give vectors: whole texts, packed without padding, with no cache."""
