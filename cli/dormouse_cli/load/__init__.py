"""`dormouse bench`: load on a deployment, and what its clients saw of it."""
