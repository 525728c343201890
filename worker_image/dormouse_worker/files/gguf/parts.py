"""Which GGUF files are a model: one, or the parts that somebody split it into, named `…-00001-of-00003.gguf`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.files.gguf.facts import Facts
from dormouse_worker.files.gguf.header import SUFFIX, GgufFile, read_gguf
from dormouse_worker.files.safetensors_files import StoredTensor

MOSTPARTS = 1000
PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
BESIDE = ("mmproj",)  # begins the names of what sees for a model


@dataclass(frozen=True, slots=True)
class Parts:
    """A model's files in their order, and what they say together: the first one's keys, all tensors."""

    files: tuple[Path, ...]
    whole: GgufFile
    sha256: tuple[str, ...]  # of each header


def choose_file(model: Path) -> Path | None:
    """Return the GGUF file that is meant, the first of its parts; None where it is a directory of another kind.

    Raises ModelInvalid where a directory has several, OSError where it cannot be read.
    """
    if model.suffix == SUFFIX and not model.is_dir():
        return model
    if not model.is_dir() or any(model.glob("*.safetensors")):
        return None
    found = sorted(file for file in model.glob(f"*{SUFFIX}") if not file.name.startswith(BESIDE))
    models = [file for file in found if (part := PART.fullmatch(file.name)) is None or int(part["number"]) == 1]
    if len(models) > 1:
        names = ", ".join(file.name for file in models[:5])
        raise ModelInvalid(f"{model}: has {len(models)} GGUF models, {names}; name one of them in spec.model.uri")
    return next(iter(models or found), None)


def read_parts(file: Path) -> Parts:
    """Return a model's files, found by the name of one. Raises ModelNotFound or ModelInvalid."""
    files = tuple(_siblings(file))
    read = [read_gguf(one) for one in files]
    for number, one in enumerate(read):
        _check_place(one, number, len(files))
    tensors: dict[str, StoredTensor] = {}
    for one in read:
        if double := tensors.keys() & one.tensors.keys():
            raise ModelInvalid(f"{one.file}: tensor {min(double)!r} is in another part, too; copy the files again")
        tensors |= one.tensors
    return Parts(files, replace(read[0], tensors=tensors), tuple(one.header_sha256 for one in read))


def _siblings(file: Path) -> list[Path]:
    part = PART.fullmatch(file.name)
    if part is None:
        return [file]
    count = int(part["count"])
    if not 1 <= count <= MOSTPARTS:
        raise ModelInvalid(f"{file}: is one of {count} parts; 1 to {MOSTPARTS} are read")
    return [file.with_name(f"{part['stem']}-{n:05}-of-{count:05}.gguf") for n in range(1, count + 1)]


def _check_place(one: GgufFile, number: int, count: int) -> None:
    """Raise ModelInvalid unless a file says that it is this part of so many."""
    facts = Facts(one)
    told = facts.whole("split.no", 0), facts.whole("split.count", 1) or 1
    if told != (number, count):
        raise facts.refusal(
            f"says that it is part {told[0]} of {told[1]} (split.no, split.count), and its name that it is part "
            f"{number} of {count}; copy the files again"
        )
