"""Other people's controllers on the local cluster: built from their Go modules, as images of one file."""

from __future__ import annotations

from pathlib import Path

from localkube import extras, node
from localkube.extras import Extra
from localkube.progress import Progress
from localkube.spec import Paths
from tools.bootstrap import cache_root

_REGISTRY = "dormouse.test"  # nobody is asked: the images are imported


def ensure_guest(extra: Extra) -> tuple[Path, dict[str, str]]:
    """Return the folder that its module brings beside its programs, and the image of each program by name."""
    paths = Paths(Path(cache_root()).resolve() / "localkube")
    folder = extras.ensure(paths, extra, Progress())
    tag = folder.name.rpartition("-")[2]
    images = {name: f"{_REGISTRY}/{extra.name}-{name}:{tag}" for name in extra.binaries.values()}
    for name, image in images.items():
        node.ensure_program_image(paths, image, folder / name, file=name)
    return folder / "kept", images
