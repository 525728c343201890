"""What a model and its cache take of a device: measured, remembered, reckoned with."""
