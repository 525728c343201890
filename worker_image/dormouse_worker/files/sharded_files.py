"""What SaveShardedState writes: a model's directory with one safetensors file per rank. Names and checks; no torch.

The tensors lie there in the order, the type and the names of the worker's own memory, so loading is one read. What that
was made of stands in the file's metadata, and a worker that needs something else is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.files.safetensors_files import StoredTensor, read_safetensors

FORMAT, VERSION = "dormouse-sharded-state", "1"
_PATTERN = "dormouse-rank-*-of-*.safetensors"


def shard_name(rank: int, world_size: int) -> str:
    """Return the name of one rank's file."""
    return f"dormouse-rank-{rank}-of-{world_size}.safetensors"


def make_metadata(config: bytes, rank: int, world_size: int) -> dict[str, str]:
    """Return the metadata of a file; `config` is the config.json beside it."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "rank": str(rank),
        "world_size": str(world_size),
        "config_sha256": hashlib.sha256(config).hexdigest(),
    }


def read_shard(directory: Path, rank: int, world_size: int) -> Mapping[str, StoredTensor]:
    """Return the tensors of one rank. Raises ModelInvalid naming what does not fit."""
    file = directory / shard_name(rank, world_size)
    if not file.is_file():
        others = (
            ", ".join(sorted(other.name for other in directory.glob(_PATTERN))) or "none that SaveShardedState wrote"
        )
        raise ModelInvalid(
            f"{file}: missing; the directory holds {others}: use load_format auto, or as many ranks as saved it"
        )
    found = read_safetensors(file)
    expected = make_metadata((directory / "config.json").read_bytes(), rank, world_size)
    for name, value in expected.items():
        if found.metadata.get(name) != value:
            raise ModelInvalid(
                f"{file}: its {name} is {found.metadata.get(name)!r}, {value!r} is needed; save the sharded state again"
            )
    return found.tensors
