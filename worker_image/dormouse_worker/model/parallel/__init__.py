"""One model over several ranks: what each holds of it, and how they exchange what the others need."""
