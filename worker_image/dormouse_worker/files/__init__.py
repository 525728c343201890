"""A model's files, before anything loads them: headers, sizes, digest, where they come from. No torch."""
