"""Which tokens may come next, guessed without the model: proposed to a pass, and taken where it samples the same."""
