"""Which tokens may come next in one sequence, guessed without the model. Knows no request."""
