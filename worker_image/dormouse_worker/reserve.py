"""The program of a pod that reserves the GPUs of a pool's slot, where there is no dynamic resource allocation.

    python -m dormouse_worker.reserve tell NVIDIA_VISIBLE_DEVICES    write which devices these are, where the kubelet
                                                                     looks for last words, and end
    python -m dormouse_worker.reserve hold                           keep them until the kubelet ends it by force

A pod that is deleted keeps its devices for as long as its grace period, so that members of the pool can leave them.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

LAST_WORDS = Path("/dev/termination-log")
_USAGE = "usage: reserve tell VARIABLE | reserve hold"


def main(arguments: Sequence[str], environ: Mapping[str, str] = os.environ, last_words: Path = LAST_WORDS) -> int:
    """Run one of the two; return the exit status."""
    match list(arguments):
        case ["tell", variable]:
            last_words.write_text(environ.get(variable, ""))
            return 0
        case ["hold"]:
            hold()
            return 0
        case _:
            sys.stderr.write(f"{_USAGE}\n")
            return 2


def hold() -> None:
    """Wait for SIGINT, which no kubelet sends; SIGTERM changes nothing."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.sigwait({signal.SIGINT})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
