"""What the front serves: the gRPC services, Relay and the HTTP side door."""
