"""A real Envoy in front of our endpoint picker: its configuration and its process, for tests and measurements."""
