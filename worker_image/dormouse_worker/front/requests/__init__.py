"""One request from its checked message to its last answer. No gRPC context, no socket."""
