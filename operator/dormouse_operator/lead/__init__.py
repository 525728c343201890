"""Which of several operators acts: the Lease, and the thread that keeps it."""
