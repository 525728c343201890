"""The commands, by what they are for. Each reads its arguments and hands over; heavy imports are made inside."""
