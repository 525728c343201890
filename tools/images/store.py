"""Our own buildah storage: the only place that starts buildah."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.images.settings import ImagesFailed, Settings

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Build:
    """One `buildah build`: what is built, from which base, under which names, with which mounts."""

    target: str
    base: str
    names: tuple[str, ...]
    mounts: Mapping[Path, str]  # host path → path in the build, read-only
    revision: str = ""  # the commit that the image's label names; environments name none
    is_cached: bool = True  # take from the storage the layers that did not change


class Store:
    """Images and build cache under one folder, so that all of it can be counted and removed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._buildah = find_program("buildah", "apt-get install buildah runc")
        settings.scratch.mkdir(parents=True, exist_ok=True)

    def __repr__(self) -> str:
        return f"Store({self._settings.storage})"

    def ids(self) -> dict[str, str]:
        """Return name:tag → image id of all images that have a name."""
        return {name: image["id"] for image in self._listed() for name in image.get("names") or []}

    def names_by_age(self) -> list[str]:
        """Return all names, those of the newest images first."""
        newest_first = sorted(self._listed(), key=lambda image: self._stored_at_s(image["id"]), reverse=True)
        return [name for image in newest_first for name in image.get("names") or []]

    def _stored_at_s(self, image_id: str) -> float:
        """Return when an image came into the storage; images that are built reproducibly carry no time of their own."""
        folders = self._settings.storage.glob(f"*-images/{image_id}*")
        return max((folder.stat().st_mtime for folder in folders), default=0.0)

    def sizes(self) -> dict[str, str]:
        """Return name:tag → unpacked size, base included, as buildah writes it: 379 MB."""
        return {name: image["size"] for image in self._listed() for name in image.get("names") or []}

    def num_layers(self, name: str) -> int:
        """Return of how many layers an image is made."""
        return len(self.digests(name)[1])

    def digests(self, name: str) -> tuple[str, tuple[str, ...]]:
        """Return the digests of an image's configuration and of its unpacked layers, the base's first."""
        found = json.loads(self.run("inspect", "--type", "image", name))
        return str(found["FromImageID"]), tuple(found["OCIv1"]["rootfs"]["diff_ids"])

    def _listed(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] | None = json.loads(self.run("images", "--json") or "[]")
        return listed or []

    def build(self, build: Build, log: Path) -> None:
        """Build one target of the Dockerfile. Every time in it is 1970, so its bytecode must not ask for times."""
        options = ["--layers", "--pull=never", "--network=none", "--format=oci", "--timestamp=0"]
        options += ["--target", build.target, "--file", str(self._settings.source / "Dockerfile")]
        options += ["--build-arg", f"BASE_IMAGE={build.base}"]
        if not build.is_cached:
            options += ["--no-cache"]
        if build.revision:
            options += ["--build-arg", f"REVISION={build.revision}"]
        for name in build.names:
            options += ["--tag", name]
        for path, inside in build.mounts.items():
            options += ["--volume", f"{path}:{inside}:ro"]
        self.run("build", *self._isolation(), *options, str(self._settings.source), log=log)

    def tag(self, image: str, name: str) -> None:
        """Give an image one more name, taking it from the image that had it."""
        self.run("tag", image, name)

    def push(self, image: str, destination: str, *options: str) -> None:
        """Copy an image to a destination in containers-transports form (docker://…, docker-archive:…)."""
        self.run("push", "--quiet", *options, image, destination)

    def remove(self, names: Sequence[str]) -> None:
        """Remove names, and what no other name and no kept image needs."""
        if names:
            self.run("rmi", *names)
        self.run("rmi", "--prune")

    def remove_containers(self) -> None:
        """Remove build containers that a killed run left behind."""
        self.run("rm", "--all")

    def run(self, *arguments: str, log: Path | None = None) -> str:
        """Run buildah and return its output; with `log` both streams go there. Raises ImagesFailed."""
        settings = self._settings
        command = [self._buildah, "--root", str(settings.storage), "--runroot", str(settings.runtime_state), *arguments]
        return run_program(command, log=log, extra=self._environment())

    def _environment(self) -> dict[str, str]:
        """Return buildah's environment: big temporary files stay in our folder; crun refuses mixed cgroups."""
        runc = shutil.which("runc", path=SYSTEM_PATH)
        return {"TMPDIR": str(self._settings.scratch), **({"BUILDAH_RUNTIME": runc} if runc else {})}

    @staticmethod
    def _isolation() -> list[str]:
        return [] if shutil.which("runc", path=SYSTEM_PATH) else ["--isolation=chroot"]


def find_program(name: str, how_to_get_it: str) -> str:
    """Return the path of a program. Raises ImagesFailed, saying how to install it."""
    if path := shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"):
        return path
    raise ImagesFailed(f"{name} is missing; install it, on Debian with: {how_to_get_it}")


def run_program(command: Sequence[str], *, log: Path | None = None, extra: Mapping[str, str] | None = None) -> str:
    """Run a program and return what it printed. Raises ImagesFailed with its last lines and the log's place."""
    environment = {**os.environ, **(extra or {})}
    if log is None:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        returncode, said, where = done.returncode, done.stdout + done.stderr, ""
        output = done.stdout
    else:
        with log.open("w") as handle:
            returncode = subprocess.run(
                command, stdout=handle, stderr=subprocess.STDOUT, check=False, env=environment
            ).returncode
        said, where, output = log.read_text(errors="replace"), f"\nthe whole log: {log}", ""
    if returncode:
        tail = "\n".join(said.strip().splitlines()[-20:])
        raise ImagesFailed(f"{' '.join(command)}\nended with {returncode}; its last lines:\n{tail}{where}")
    return output
