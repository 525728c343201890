"""Images in prompts, without torch: which are encoded when, whose rows are kept, what may be asked for."""
