"""The narrow seam to the Kubernetes API: a protocol on plain mappings, its real client, and a fake for tests."""
