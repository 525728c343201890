"""The command line of Dormouse."""
