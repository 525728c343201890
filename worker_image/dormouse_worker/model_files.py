"""What a model's directory must look like before anything loads it. Reads headers only; imports no torch.

The front calls this to answer at once; the engine calls it before it imports anything heavy.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from dormouse_worker.errors import CustomCodeRefused, ModelInvalid, ModelNotFound, PickleRefused

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
MAX_HEADER_BYTES = 100 << 20  # the format's own limit
_HEADER_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A directory that passed every check."""

    path: Path
    config: Mapping[str, Any]
    weight_files: tuple[Path, ...]  # empty for load_format=dummy


def check_model_files(path: Path, load_format: str) -> ModelFiles:
    """Return the directory's files. Raises ModelNotFound, ModelInvalid, CustomCodeRefused or PickleRefused."""
    if not path.is_dir():
        raise ModelNotFound(f"{path}: no such directory; check spec.model.uri and that its volume holds the model")
    config = _read_object(path / "config.json")
    if "auto_map" in config:
        raise CustomCodeRefused(
            f"{path / 'config.json'}: auto_map asks for Python code from the model's directory, which is never run; "
            "use an architecture that transformers has itself and remove auto_map"
        )
    if load_format == "dummy":
        return ModelFiles(path, config, ())
    weight_files = _find_weight_files(path)
    for file in weight_files:
        _check_safetensors(file)
    return ModelFiles(path, config, weight_files)


def _find_weight_files(path: Path) -> tuple[Path, ...]:
    if (path / INDEX_FILE).exists():
        return tuple(_indexed_files(path))
    if (path / SINGLE_FILE).exists():
        return (path / SINGLE_FILE,)
    pickles = sorted(file.name for pattern in PICKLE_PATTERNS for file in path.glob(pattern))
    if pickles:
        raise PickleRefused(
            f"{path / pickles[0]}: pickled weights can run code and are refused; save the model with "
            "save_pretrained, which writes safetensors"
        )
    raise ModelInvalid(f"{path}: neither {SINGLE_FILE} nor {INDEX_FILE} is there; copy the model's weights into it")


def _indexed_files(path: Path) -> Iterator[Path]:
    weight_map = _read_object(path / INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelInvalid(f"{path / INDEX_FILE}: weight_map is missing or empty; copy the model again")
    for name in sorted({str(value) for value in weight_map.values()}):
        if Path(name).name != name:
            raise ModelInvalid(f"{path / INDEX_FILE}: {name!r} points out of the model's directory")
        if not (path / name).is_file():
            raise ModelInvalid(f"{path / name}: named by {INDEX_FILE} but missing; copy the model again")
        yield path / name


def _read_object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise ModelInvalid(f"{file}: missing; copy the whole model directory") from error
    except (OSError, ValueError) as error:
        raise ModelInvalid(f"{file}: not readable as JSON ({error}); copy the model again") from error
    if not isinstance(value, dict):
        raise ModelInvalid(f"{file}: holds {type(value).__name__}, a JSON object is needed")
    return value


def _check_safetensors(file: Path) -> None:
    """Compare the length that the header promises with the file's. Layout: u64 length | JSON header | data."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        header, header_bytes = _read_header(file, stream, size)
    try:
        data_bytes = max((int(entry["data_offsets"][1]) for entry in _tensors(header)), default=0)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ModelInvalid(f"{file}: header names a tensor without data_offsets; copy the file again") from error
    needed = _HEADER_LENGTH.size + header_bytes + data_bytes
    if size != needed:
        raise ModelInvalid(
            f"{file}: truncated or damaged: {size} bytes, its header needs {needed}; copy the file again"
        )


def _tensors(header: Mapping[str, Any]) -> Iterator[Any]:
    return (entry for name, entry in header.items() if name != "__metadata__")


def _read_header(file: Path, stream: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    prefix = stream.read(_HEADER_LENGTH.size)
    if len(prefix) < _HEADER_LENGTH.size:
        raise ModelInvalid(f"{file}: truncated: {size} bytes, a safetensors file has at least 8; copy the file again")
    (length,) = _HEADER_LENGTH.unpack(prefix)
    if length > min(MAX_HEADER_BYTES, size):
        raise ModelInvalid(f"{file}: truncated or damaged: header of {length} bytes in {size}; copy the file again")
    try:
        header = json.loads(stream.read(length))
    except ValueError as error:
        raise ModelInvalid(f"{file}: header is no JSON ({error}); copy the file again") from error
    if not isinstance(header, dict):
        raise ModelInvalid(f"{file}: header is no JSON object; copy the file again")
    return header, length
