"""Programs for a machine with a GPU: `python3 tests/gpu test` and `python3 tests/gpu bench`; see docs/design/gpu.md.

Started by its path, so that it needs no installation: it finds our folders by itself, ahead of packages of other
people that are called `tests` or `tools` as well.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
OUR_FOLDERS = ("tests", "tools", "bench")
PACKAGE_FOLDERS = ("api", "worker_image")


def find_our_folders() -> None:
    """Let imports find our packages and folders first."""
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [*(str(ROOT / name) for name in PACKAGE_FOLDERS), *(path for path in sys.path if path != here)]
    for name in OUR_FOLDERS:
        folder = ModuleType(name)
        folder.__path__ = [str(ROOT / name)]
        sys.modules[name] = folder


find_our_folders()  # also in a process that this one spawns, which imports it under another name

if __name__ == "__main__":
    from tests.gpu.program import main

    sys.exit(main(sys.argv[1:]))
