"""Speech: sound becomes features in processes of their own, and windows of it segments of text."""
