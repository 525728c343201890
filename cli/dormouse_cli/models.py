"""What `dormouse serve MODEL` means: a directory, a GGUF file, or a name on a hub. Pure but for looking at the disk."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dormouse_cli.errors import CommandFailed

_ON_HUB = re.compile(r"(?:hf://)?(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::(?P<file>[A-Za-z0-9][\w.-]*))?")


@dataclass(frozen=True, slots=True)
class OnHub:
    """A model that has to be downloaded."""

    repo: str  # ORG/NAME
    revision: str
    file: str = ""  # of GGUF files the one to take, by its name or quantization

    def directory(self, cache: Path) -> Path:
        """Return where its files are kept."""
        return (
            cache
            / "models"
            / "--".join((*self.repo.split("/"), self.revision.replace("/", "-"), *filter(None, (self.file,))))
        )


def find_model(text: str, revision: str) -> Path | OnHub:
    """Return what the user means. Raises CommandFailed, which says what to give instead."""
    path = Path(text).expanduser()
    if path.is_file() and path.suffix != ".gguf":
        raise CommandFailed(
            f"{text} is a file: give the directory that holds config.json, tokenizer and *.safetensors, or a .gguf"
        )
    if path.exists():
        return path if path.name else path.resolve()  # "." has no name, and the model is called by it
    if found := _ON_HUB.fullmatch(text):
        return OnHub(found["repo"], revision, found["file"] or "")
    raise CommandFailed(f"there is no {text}: give a model's directory or GGUF file, or its name on the hub (ORG/NAME)")


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return where downloads are kept: DORMOUSE_CACHE, else `dormouse` in the user's folder of caches."""
    if configured := environ.get("DORMOUSE_CACHE"):
        return Path(configured)
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dormouse"
