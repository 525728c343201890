"""Stand-in GPUs: a driver of dynamic resource allocation that offers devices which are not there."""
