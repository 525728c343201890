"""One condition = one step = one file, each a guard ladder. `steps` holds their order. Pure."""
