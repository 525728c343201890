"""Cases that several processes share: each starts Python and a context of its own, and they compile side by side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("__main__.py")
MAX_PROCESSES = 8


def num_processes() -> int:
    """Return how many processes share a case on this machine."""
    return min(MAX_PROCESSES, os.cpu_count() or 1)


def share_out(child: str, shares: Sequence[str]) -> list[Any]:
    """Have a process for each share be a child of the program; return what each says, which is JSON.

    Raises RuntimeError if one ends with an error.
    """
    commands = ([sys.executable, str(PROGRAM), child, share] for share in shares)
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    told = [one.communicate()[0] for one in children]
    for share, one in zip(shares, children, strict=True):
        if one.returncode:
            raise RuntimeError(f"the process for {share} of {child} ended with {one.returncode}: see its words above")
    return [json.loads(words) for words in told]
