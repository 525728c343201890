"""Runs `process` under an interpreter that has vLLM and not us: `PYTHON -P launch.py --socket PATH`.

Only our packages are found where we lie, not what is installed beside them: vLLM has its own of these.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

OURS = {"dormouse_worker": "worker_image", "dormouse_api": "api"}  # package → its folder in a checkout


class OurPackages:
    """Finds these packages by themselves; implements `importlib.abc.MetaPathFinder`."""

    def __init__(self, root: Path) -> None:
        """`root` holds the worker's package; in a checkout the others lie in folders beside it."""
        self._root = root

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a package of ours is, None for everybody else's."""
        del path, target
        folders = [str(self._root), str(self._root.parent / OURS[name])] if name in OURS else []
        return PathFinder.find_spec(name, folders) if folders else None


if __name__ == "__main__":
    sys.meta_path.insert(0, OurPackages(Path(__file__).resolve().parents[3]))
    from dormouse_worker.foreign.vllm.process import main

    sys.exit(main())
