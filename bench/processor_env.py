"""Makes the environment of OpenVINO, llama.cpp and onnxruntime-genai: `python -m bench.processor_env`.

They are measured, and never used.
"""

from __future__ import annotations

import os

from tools.bootstrap import ROOT, machine_lock
from tools.side_env import SideEnvironment

PEERS = SideEnvironment(
    kind="processor-peers",
    name="openvino-llamacpp",
    owner="OpenVINO's and llama.cpp's",
    locks=(ROOT / "bench" / "processor_peers.txt",),
    needed_bytes=1 << 30,
)
MAKE = "make bench-processor-peers"


def main() -> None:
    """Make the environment and print its folder."""
    with machine_lock(PEERS.kind):
        print(PEERS.make("downloading and installing OpenVINO, llama.cpp and onnxruntime-genai", lambda _: None))


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    main()
