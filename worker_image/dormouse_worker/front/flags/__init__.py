"""The worker's command line: one file for each group of flags, `settings` for all of it."""
