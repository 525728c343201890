"""The workers as the gateway knows them: connections, places, loads."""
