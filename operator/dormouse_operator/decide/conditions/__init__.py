"""One condition = one step = one file, each a guard ladder. `all` holds their order. Pure."""
