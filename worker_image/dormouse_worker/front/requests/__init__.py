"""What of a request needs no worker: checks, sampling, streams, answers. No gRPC context, no socket."""
