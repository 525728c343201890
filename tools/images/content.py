"""What an image is made of, and the tag that follows from it. Reads files; knows no build tool."""

from __future__ import annotations

import hashlib
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tools.bootstrap import ROOT
from tools.images import stages

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
VERSION: str = PROJECT["version"]  # every build carries this tag too, for the chart asks for it
PARTS = ("operator", "gateway", "worker")
PACKAGES = (
    "api/dormouse_api",
    "kube/dormouse_kube",
    "operator/dormouse_operator",
    "gateway/dormouse_gateway",
    "worker_image/dormouse_worker",
)
LOCKS = tuple(f"requirements/{part}.txt" for part in PARTS)
VLLM_LOCK = "bench/peers.txt"  # of an image that is no part: users build it
RECIPE = ("Dockerfile", ".dockerignore")


def source_files(source: Path) -> Iterator[Path]:
    """Yield every file that can change an image, in a fixed order: the same ones that .dockerignore lets in."""
    for name in (*RECIPE, *LOCKS, VLLM_LOCK):
        yield source / name
    for package in PACKAGES:
        yield from sorted(path for path in (source / package).rglob("*") if path.is_file() and not is_bytecode(path))


def is_bytecode(path: Path) -> bool:
    """Return whether Python wrote the file by itself."""
    return "__pycache__" in path.parts or path.suffix in {".pyc", ".pyo"}


def digest_of(source: Path, files: Iterator[Path]) -> str:
    """Return 12 hexadecimal digits over names, executable bits and contents. File times do not count."""
    whole = hashlib.sha256()
    for path in files:
        executable = bool(path.stat().st_mode & 0o100)
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        whole.update(f"{path.relative_to(source)} {executable} {content}\n".encode())
    return whole.hexdigest()[:12]


def tag(source: Path) -> str:
    """Return the tag of the images that these sources make; the version in front keeps it a word for helm --set."""
    return f"{VERSION}-{digest_of(source, source_files(source))}"


def revision(source: Path) -> str:
    """Return the commit of the sources, with -dirty where they differ from it; "" where no git knows them.

    An image keeps what was true when its content was built first: the same content is not built again.
    """
    command = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def environment_tag(source: Path, part: str, base_key: str) -> str:
    """Return the tag of a part's Python environment, of its lock, the stages that it stands on and the base."""
    below = stages.text_under((source / "Dockerfile").read_text(), f"{part}-env")
    lock = (source / "requirements" / f"{part}.txt").read_text()
    return f"{base_key}-{hashlib.sha256((below + lock).encode()).hexdigest()[:12]}"
