"""A real one-node Kubernetes made of ordinary processes, for the demo and the tests (`python -m localkube --help`)."""
