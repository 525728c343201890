"""The wire contract of Dormouse: protobuf messages, gRPC stubs, shared names and limits. Knows no other package."""

import os

__version__ = "0.1.0"  # of the distribution, as in pyproject.toml; in the images only the code is there

# gRPC reads this as it is imported. Its handlers run in the parent at each fork, also where a program is executed at
# once, and hang or end a process whose other threads are in gRPC. Nobody here calls gRPC in a forked child.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
