"""The front of a pod that follows in a group of pods."""
