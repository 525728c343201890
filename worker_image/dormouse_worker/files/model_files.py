"""What a model's directory must look like before anything loads it. Reads headers only; imports no torch.

The front calls this to answer at once; the engine calls it before it imports anything heavy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dormouse_worker.common.errors import ModelInvalid, ModelNotFound, PickleRefused
from dormouse_worker.common.layout import Layout
from dormouse_worker.files.gguf.header import GgufFile
from dormouse_worker.files.gguf.parts import choose_file, read_parts
from dormouse_worker.files.json_files import require_object
from dormouse_worker.files.model_sizes import check_sizes
from dormouse_worker.files.safetensors_files import StoredTensor, read_safetensors
from dormouse_worker.files.sharded_files import read_shard

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A directory that passed every check."""

    path: Path
    config: Mapping[str, Any]
    weight_files: tuple[Path, ...]  # empty for load_format=dummy
    tensors: Mapping[str, StoredTensor] = field(default_factory=dict)  # of all weight files
    gguf: GgufFile | None = None  # what the weight files say, where they are GGUF


def check_model_files(path: Path, load_format: str, layout: Layout | None = None) -> ModelFiles:
    """Return the directory's files; of a sharded state the rank's alone.

    Raises ModelNotFound, ModelInvalid or PickleRefused. Code that `auto_map` names is never run: whether the
    model needs it is for the engine to say, which knows the architectures.
    """
    if not path.is_dir():
        raise ModelNotFound(f"{path}: no such directory; check spec.model.uri and that its volume holds the model")
    config = require_object(path / "config.json")
    check_sizes(path / "config.json", config)
    _check_architectures(path / "config.json", config.get("architectures"))
    if load_format == "dummy":
        return ModelFiles(path, config, ())
    if load_format == "sharded_state":
        place = layout or Layout()
        shard = read_shard(path, rank=place.rank, world_size=place.world_size)
        return ModelFiles(path, config, tuple({tensor.file for tensor in shard.values()}), shard)
    if (gguf := choose_file(path)) is not None:
        parts = read_parts(gguf)
        return ModelFiles(path, config, parts.files, parts.whole.tensors, parts.whole)
    weight_files = _find_weight_files(path)
    tensors = {name: tensor for file in weight_files for name, tensor in read_safetensors(file).tensors.items()}
    return ModelFiles(path, config, weight_files, tensors)


def _check_architectures(file: Path, names: object) -> None:
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ModelInvalid(
            f"{file}: architectures is {str(names)[:80]}, a list of names is needed; copy config.json again"
        )


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
    weight_map = require_object(path / INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelInvalid(f"{path / INDEX_FILE}: weight_map is missing or empty; copy the model again")
    for name in sorted({str(value) for value in weight_map.values()}):
        if Path(name).name != name:
            raise ModelInvalid(f"{path / INDEX_FILE}: {name!r} points out of the model's directory")
        if not (path / name).is_file():
            raise ModelInvalid(f"{path / name}: named by {INDEX_FILE} but missing; copy the model again")
        yield path / name
