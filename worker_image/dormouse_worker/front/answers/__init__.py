"""What a model says, thinks and calls, read from its text: one incremental parser, families of models as data."""
