"""Workers that do as they are told, and what Kubernetes would say, for tests."""
