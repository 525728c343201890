"""Makes the environment in which OpenVINO computes encoders: `python -m bench.vector_env`. Measured, never used."""

from __future__ import annotations

import os

from tools.bootstrap import ROOT, machine_lock
from tools.side_env import SideEnvironment

PEERS = SideEnvironment(
    kind="vector-peers",
    name="openvino",
    owner="OpenVINO's",
    locks=(ROOT / "bench" / "vector_peers.txt",),
    needed_bytes=1 << 30,
)
MAKE = "make bench-vector-peers"


def main() -> None:
    """Make the environment and print its folder."""
    with machine_lock(PEERS.kind):
        print(PEERS.make("downloading and installing OpenVINO", lambda _: None))


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    main()
