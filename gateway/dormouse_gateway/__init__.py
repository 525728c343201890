"""The front door: routes requests by model name to ready workers."""
