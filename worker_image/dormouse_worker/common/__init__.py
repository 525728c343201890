"""What front, engine and ranks share: messages, settings, errors, the machine. No torch."""
