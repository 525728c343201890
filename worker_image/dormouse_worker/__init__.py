"""The inference worker: a front process (gRPC, tokenizing, no torch) and one engine process per rank."""
