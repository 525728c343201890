"""One deployment as it is now: its pods, its workers' own words, who asks for it. It decides nothing."""
