"""Other people's controllers, built from their Go modules, as images of one file; and their definitions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from localkube import extras, node
from localkube.build import digest_of, go_environment
from localkube.extras import Extra
from localkube.gotool import find_go
from localkube.lock import machine_lock
from localkube.progress import Progress
from localkube.spec import Paths
from tools.bootstrap import cache_root
from tools.kubectl import run

_DEFINITIONS = Path(__file__).parent / "definitions"  # which modules, and their sums
_REGISTRY = "dormouse.test"  # nobody is asked: the images are imported


def ensure_guest(extra: Extra) -> tuple[Path, dict[str, str]]:
    """Return the folder that its module brings beside its programs, and the image of each program by name."""
    paths = _paths()
    folder = extras.ensure(paths, extra, Progress())
    tag = folder.name.rpartition("-")[2]
    images = {name: f"{_REGISTRY}/{extra.name}-{name}:{tag}" for name in extra.binaries.values()}
    for name, image in images.items():
        node.ensure_program_image(paths, image, folder / name, file=name)
    return folder / "kept", images


def ensure_definitions(module: str, inside: str) -> Path:
    """Return a folder of a Go module that `definitions/go.mod` names; it is downloaded once. One folder of each."""
    pins = [(name, (_DEFINITIONS / name).read_bytes()) for name in ("go.mod", "go.sum")]
    final = _paths().extras / f"definitions-{module.rpartition('/')[2]}-{digest_of(iter(pins))}"
    with machine_lock("definitions", Progress().say):
        if not final.exists():
            caches, building = final.with_suffix(".caches"), final.with_suffix(".partial")
            go = find_go(_paths().go / "toolchain", Progress().say)
            download = [str(go), "-C", str(_DEFINITIONS), "mod", "download", "-json", module]
            source = Path(json.loads(run(download, env=go_environment(caches)))["Dir"])
            shutil.copytree(source / inside, building, dirs_exist_ok=True)
            shutil.rmtree(caches)
            building.rename(final)
    return final


def _paths() -> Paths:
    return Paths(Path(cache_root()).resolve() / "localkube")
