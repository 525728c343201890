"""From commands to workers: the hardware-neutral interface, its wrapper per rank, and the workers themselves."""
