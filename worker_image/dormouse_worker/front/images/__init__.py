"""Images of prompts: decoded and processed in processes of their own, kept as files, and their place in the text."""
