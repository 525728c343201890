"""Images: bring one from buildah to the node through the loopback registry, and remove the ones that are outdated."""

from __future__ import annotations

import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from localkube import host, node, spec
from localkube.errors import ComponentError, HostError
from localkube.progress import Progress
from localkube.spec import Paths

KEPT_TAGS = 2  # per repository: the one in use, and the one before it


@dataclass(frozen=True, slots=True)
class Tag:
    """One tag of the loopback registry."""

    repository: str
    name: str
    digest: str  # of the manifest it points to
    modified_s: float  # when it was pushed last


def mirrored_name(image: str) -> str:
    """Return an image's name without its registry's host, as the loopback registry knows it.

    Raises:
        HostError: the name has no tag, or a digest instead of one.

    >>> mirrored_name("ghcr.io/dormouse/worker:1.0")
    'dormouse/worker:1.0'
    """
    first, slash, rest = image.partition("/")
    is_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    name = rest if is_host else image
    tag = name.rpartition("/")[2].partition(":")[2]
    if not tag or "@" in name:
        raise HostError(f"image {image!r}: a name with a tag is needed, like localhost/app:1")
    return name


def tags_to_remove(tags: Iterable[Tag], keep: int = KEPT_TAGS) -> list[Tag]:
    """Return all but the newest `keep` tags of every repository, oldest first; never one whose image a kept tag has."""
    per_repository: dict[str, list[Tag]] = defaultdict(list)
    for tag in tags:
        per_repository[tag.repository].append(tag)
    removed: list[Tag] = []
    for members in per_repository.values():
        members.sort(key=lambda tag: (tag.modified_s, tag.name))
        kept = {tag.digest for tag in members[-keep:]}
        removed += [tag for tag in members[:-keep] if tag.digest not in kept]
    return removed


def load(paths: Paths, image: str, progress: Progress) -> None:
    """Make a buildah image usable by pods under the same name; only layers that are new are copied.

    Raises:
        HostError: there is no such image, or its name has no tag.
        ComponentError: the push or the pull failed.
    """
    target = f"{spec.REGISTRY}/{mirrored_name(image)}"
    started = time.monotonic()
    # a registry's layers are always compressed, by default with gzip, which takes twice as long as this
    compress = ["--compression-format", "zstd", "--compression-level", "1"]
    push = [host.program("buildah"), "push", "--quiet", "--tls-verify=false", *compress]
    done = subprocess.run([*push, image, f"docker://{target}"], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = "\n".join(done.stderr.splitlines()[-5:])
        raise ComponentError(
            f"registry: pushing {image} to {target} failed; log: {paths.logs / 'registry.log'}\n{lines}"
        )
    pushed = time.monotonic()
    node.pull(paths, image)
    progress.say(f"{image}: pushed in {pushed - started:.1f} s, pulled in {time.monotonic() - pushed:.1f} s")


def _repositories(paths: Paths) -> Path:
    return paths.registry / "docker" / "registry" / "v2" / "repositories"


def list_tags(paths: Paths) -> list[Tag]:
    """Return all tags of the registry, read from its files; half-written ones are left out."""
    root = _repositories(paths)
    tags = []
    for link in root.rglob("_manifests/tags/*/current/link"):
        folder = link.parent.parent
        repository = folder.parent.parent.parent.relative_to(root)
        digest = link.read_text("ascii").strip()
        tags.append(Tag(str(repository), folder.name, digest, link.stat().st_mtime))
    return tags


def prune(paths: Paths, binaries: Path, progress: Progress) -> None:
    """Remove outdated tags from registry and node, then every blob that no tag needs; raises ComponentError."""
    outdated = tags_to_remove(list_tags(paths))
    for tag in outdated:
        progress.say(f"removing image {tag.repository}:{tag.name}")
        host.remove_tree(_repositories(paths) / tag.repository / "_manifests" / "tags" / tag.name)
    _remove_from_node(paths, {f"{tag.repository}:{tag.name}" for tag in outdated})
    if not _repositories(paths).is_dir() or not (paths.etc / "registry.json").exists():
        return
    command = [str(binaries / "registry"), "garbage-collect", "--delete-untagged", str(paths.etc / "registry.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = "\n".join((done.stdout + done.stderr).splitlines()[-5:])
        raise ComponentError(f"registry: garbage collection failed ({done.returncode})\n{lines}")


def _remove_from_node(paths: Paths, names: set[str]) -> None:
    if not names:
        return
    for image in node.images(paths):
        if "@" not in image and ":" in image and not image.startswith("sha256:") and mirrored_name(image) in names:
            node.remove_image(paths, image)
