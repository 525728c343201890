"""The weights of one rank: how they lie in memory, where they come from, how they leave and return."""
