"""Who may call, what and how much: keys, the salt of each, and what of a request is read."""
