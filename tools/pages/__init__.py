"""The reference pages of the documentation, made from what they describe; `python -m tools.pages` writes them."""
