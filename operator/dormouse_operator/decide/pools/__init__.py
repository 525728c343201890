"""Who holds the GPUs of a pool: who is given one, who has to leave, and the next step of each switch. Pure."""
