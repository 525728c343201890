"""Makes the environment in which faster-whisper and openai-whisper run: `python -m bench.speech_env`.

They are measured, never used.
"""

from __future__ import annotations

import os

from tools.bootstrap import ROOT, machine_lock
from tools.side_env import SideEnvironment

PEERS = SideEnvironment(
    kind="speech-peers",
    name="whisper",
    owner="the Whisper peers'",
    locks=(ROOT / "bench" / "speech_peers.txt",),
    needed_bytes=9 * 2**30,  # torch and its libraries, and the largest packages while they are unpacked
)
MAKE = "make bench-speech-peers"


def main() -> None:
    """Make the environment and print its folder."""
    with machine_lock(PEERS.kind):
        print(PEERS.make("downloading and installing faster-whisper and openai-whisper; some minutes", lambda _: None))


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    main()
