"""One rank's worker on its device: load, allocate, compute, sleep and wake."""
