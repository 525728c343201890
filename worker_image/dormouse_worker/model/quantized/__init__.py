"""Linear maps of fewer bits: what their tensors are, which modules have them, how they are made while loading."""
