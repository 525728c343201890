"""The wire contract of Dormouse: protobuf messages, gRPC stubs, shared names and limits. Knows no other package."""

__version__ = "0.1.0"  # of the distribution, as in pyproject.toml; in the images only the code is there
