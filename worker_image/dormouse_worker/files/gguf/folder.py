"""A GGUF file as a model's directory: what its header says as config.json and tokenizer, and links to the file's parts.

The directory lies in a cache of this user's own, under a digest of what it was made of, so that each process of a
worker finds the same one. Nothing else of a worker needs to know that a model came as one file.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.files.gguf.config import config_of, generation_config_of
from dormouse_worker.files.gguf.facts import Facts
from dormouse_worker.files.gguf.header import SUFFIX
from dormouse_worker.files.gguf.parts import Parts, choose_file, read_parts
from dormouse_worker.files.gguf.tokenizer import tokenizer_config_of, tokenizer_of
from dormouse_worker.files.private_folder import default_folder, require_private

VERSION = "1"  # of what is made here; another one makes all directories anew
MARK = ".dormouse-gguf"  # says that a directory was made here


def as_directory(settings: EngineSettings) -> EngineSettings:
    """Return settings that name a model's directory, where they name a GGUF file or a directory with one.

    Raises ModelNotFound or ModelInvalid; OSError where a volume, or the cache, cannot be used.
    """
    file = choose_file(settings.model_path)
    if file is None or (settings.model_path / MARK).is_file():
        return settings
    cache = Path(settings.tokenizer_cache) if settings.tokenizer_cache else default_folder()
    return msgspec.structs.replace(settings, model=str(make_directory(file, cache)))


def make_directory(file: Path, cache: Path) -> Path:
    """Return the directory of a file, made if it is not in the cache. Raises as `as_directory`."""
    parts = read_parts(file)
    require_private(cache)
    target = cache / f"{parts.files[0].name.removesuffix(SUFFIX)[:80]}-{_digest(parts)}"
    if not target.is_dir():
        begun = Path(tempfile.mkdtemp(dir=cache))
        try:
            _fill(begun, parts)
            begun.rename(target)  # whole or not at all
        except OSError:
            if not target.is_dir():  # else another process was sooner
                raise
        finally:
            shutil.rmtree(begun, ignore_errors=True)
    return target


def _fill(folder: Path, parts: Parts) -> None:
    facts = Facts(parts.whole)
    (folder / MARK).touch()
    _write(folder / "config.json", config_of(facts))
    _write(folder / "generation_config.json", generation_config_of(facts))
    tokenizer = tokenizer_of(facts)
    if tokenizer is not None:
        _write(folder / "tokenizer.json", tokenizer)
    _write(folder / "tokenizer_config.json", tokenizer_config_of(facts))
    for file in parts.files:
        (folder / file.name).symlink_to(file.absolute())


def _write(file: Path, content: dict[str, Any]) -> None:
    try:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise ModelInvalid(f"{file.name} would have a number that is not finite; copy the model again") from error
    file.write_text(text, "utf-8")


def _digest(parts: Parts) -> str:
    facts: Sequence[str] = [VERSION, *parts.sha256, *(str(file.absolute()) for file in parts.files)]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]
