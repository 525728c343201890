"""One call of each kind, from its request to its last answer."""
