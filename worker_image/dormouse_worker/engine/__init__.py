"""The engine without a tensor: requests, blocks, scheduling, the step and the commands. Imports no torch."""
