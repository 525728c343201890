"""The engine process as the front sees it: its start, state, link and end. What is done with it is `conduct`'s."""
