"""The wire contract of Dormouse: protobuf messages, gRPC stubs, shared names and limits. Knows no other package."""
