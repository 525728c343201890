"""The stand-ins' folders on the node, each with the bytes of its device: what pods mount, and share.

Workers keep their books in there (`dormouse_worker.model.device.ledger_file` says how); nothing of them is read here.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from localkube.gpus.objects import Gpus, bytes_of

MEMORY = "memory"
MODE = 0o777  # a pod's user is nobody's


def make(root: Path, gpus: Gpus) -> None:
    """Have a folder for each GPU, and no other. Books that are there stay: pods may use them yet."""
    root.mkdir(parents=True, exist_ok=True)
    for name in gpus.names:
        folder = root / name
        folder.mkdir(exist_ok=True)
        folder.chmod(MODE)
        (folder / MEMORY).write_text(f"{bytes_of(gpus.memory)}\n")
    for folder in root.iterdir():
        if folder.name not in gpus.names:
            shutil.rmtree(folder)


def remove(root: Path) -> None:
    """Leave nothing, also where the cluster ended before."""
    shutil.rmtree(root, ignore_errors=True)
