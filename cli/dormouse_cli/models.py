"""What `dormouse serve MODEL` means: a directory, or the name of a model on a hub. Pure but for looking at the disk."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dormouse_cli.errors import CommandFailed

_ON_HUB = re.compile(r"(?:hf://)?(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)")
_GGUF_REMEDY = (
    "quantized GGUF weights cannot be served yet. Give the directory of the model's safetensors files, or the name of "
    "its original on the hub (dormouse serve ORG/NAME)"
)


@dataclass(frozen=True, slots=True)
class OnHub:
    """A model that has to be downloaded."""

    repo: str  # ORG/NAME
    revision: str

    def directory(self, cache: Path) -> Path:
        """Return where its files are kept."""
        return cache / "models" / "--".join((*self.repo.split("/"), self.revision.replace("/", "-")))


def find_model(text: str, revision: str) -> Path | OnHub:
    """Return what the user means. Raises CommandFailed, which says what to give instead."""
    path = Path(text).expanduser()
    if path.suffix.lower() == ".gguf" and not path.is_dir():
        raise CommandFailed(f"{text} is a GGUF file: {_GGUF_REMEDY}")
    if path.is_file():
        raise CommandFailed(f"{text} is a file: give the directory that holds config.json, tokenizer and *.safetensors")
    if path.is_dir():
        _check_directory(text, path)
        return path if path.name else path.resolve()  # "." has no name, and the model is called by it
    if found := _ON_HUB.fullmatch(text):
        return OnHub(found["repo"], revision)
    raise CommandFailed(f"there is no {text}: give a model's directory, or its name on the hub (ORG/NAME)")


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return where downloads are kept: DORMOUSE_CACHE, else `dormouse` in the user's folder of caches."""
    if configured := environ.get("DORMOUSE_CACHE"):
        return Path(configured)
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dormouse"


def _check_directory(text: str, path: Path) -> None:
    """Refuse a directory that holds GGUF files only; what else may be wrong with it the worker says."""
    files = sorted(path.glob("*.gguf"))
    if files and not any(path.glob("*.safetensors")):
        raise CommandFailed(f"{text} holds {files[0].name} and no *.safetensors: {_GGUF_REMEDY}")
