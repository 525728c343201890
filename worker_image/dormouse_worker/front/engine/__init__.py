"""The engine process as the front sees it: its start, state, commands, replacement and end."""
