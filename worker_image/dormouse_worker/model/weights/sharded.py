"""Writes a rank's weights as `load_format=sharded_state` reads them: whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from dormouse_worker.errors import InvalidArgument, ModelInvalid, StorageFull, WrongState
from dormouse_worker.model.weights.layout import Slot
from dormouse_worker.model.weights.reader import STORED_DTYPES
from dormouse_worker.model.weights.skeleton import PART
from dormouse_worker.model.weights.store import WeightStore
from dormouse_worker.model_files import ModelFiles
from dormouse_worker.sharded_files import make_metadata, shard_name

COMPANIONS = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")  # what a worker reads beside the weights
_INDEX_SUFFIX = ".safetensors.index.json"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NAMES = {dtype: name for name, dtype in STORED_DTYPES.items()}
_HEADER_ALIGNMENT = 8

Write = Callable[[int, memoryview], int]


def save_sharded_state(
    store: WeightStore,
    model_path: Path,
    directory: Path,
    *,
    rank: int = 0,
    world_size: int = 1,
    write: Write = os.write,
) -> None:
    """Make a new model directory with these weights and the model's small files.

    Raises InvalidArgument about the directory or a model whose weights can not be stored so, WrongState while the
    weights sleep, StorageFull; nothing is left of what was begun then.
    """
    if store.is_asleep:
        raise WrongState("the weights sleep; wake them and save again")
    slots = _storable(store)
    target = _check_target(directory, model_path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        _copy_companions(model_path, partial)
        metadata = make_metadata((partial / "config.json").read_bytes(), rank, world_size)
        _write_file(partial / shard_name(rank, world_size), _header(slots, metadata), store, slots, write)
        _sync(partial)
        partial.rename(target)
        _sync(target.parent)
    except OSError as error:
        if error.errno in _FULL:
            raise StorageFull(f"{target}: no room for {_size(slots)} bytes of weights: {error.strerror}") from error
        raise InvalidArgument(f"directory is {str(directory)!r}, which can not be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def check_shard(files: ModelFiles, slots: Mapping[str, Slot]) -> None:
    """Raise ModelInvalid, naming the tensor, unless the files hold exactly what the module's memory needs."""
    for name in files.tensors.keys() - slots.keys():
        raise ModelInvalid(f"{files.path}: {name} is in the sharded state, but has no place of its own in the model")
    for name, slot in slots.items():
        stored = files.tensors.get(name)
        if stored is None:
            raise ModelInvalid(f"{files.path}: {name}, which config.json asks for, is not in the sharded state")
        if (STORED_DTYPES.get(stored.dtype), stored.shape) != (slot.dtype, slot.shape):
            raise ModelInvalid(
                f"{stored.file}: {name} is {stored.dtype} {list(stored.shape)}, {_NAMES.get(slot.dtype)} "
                f"{list(slot.shape)} is needed; set the dtype that it was saved with, or use load_format auto"
            )


def _storable(store: WeightStore) -> list[Slot]:
    for slot in store.stored_slots:
        if PART in slot.name or slot.dtype not in _NAMES:
            raise InvalidArgument(
                f"{slot.name} is {slot.dtype}: quantized models have no sharded state; their checkpoint is as small"
            )
    return list(store.stored_slots)


def _check_target(directory: Path, model_path: Path) -> Path:
    """Return the directory, symbolic links resolved. Raises InvalidArgument."""

    def refused(why: str) -> InvalidArgument:
        return InvalidArgument(f"directory is {str(directory)!r}, {why}")

    if not directory.is_absolute() or ".." in directory.parts:
        raise refused("an absolute path without '..' is needed")
    if not directory.parent.is_dir():
        raise refused("whose parent does not exist; create it first")
    target = directory.parent.resolve() / directory.name
    if target.is_symlink() or os.path.ismount(target):
        raise refused("a symbolic link or a mount; name a directory below it")
    if target.exists() and not (target.is_dir() and next(target.iterdir(), None) is None):
        raise refused("which exists and is no empty directory; nothing is overwritten")
    if target.is_relative_to(model_path.resolve()):
        raise refused(f"which lies within the model's own, {model_path}; name another place")
    return target


def _copy_companions(source: Path, target: Path) -> None:
    for pattern in COMPANIONS:
        for file in source.glob(pattern):
            if file.is_file() and not file.name.endswith(_INDEX_SUFFIX):
                shutil.copyfile(file, target / file.name)


def _header(slots: list[Slot], metadata: dict[str, str]) -> bytes:
    header: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for slot in slots:
        start, end = end, end + slot.num_bytes
        header[slot.name] = {"dtype": _NAMES[slot.dtype], "shape": slot.shape, "data_offsets": (start, end)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _write_file(file: Path, header: bytes, store: WeightStore, slots: list[Slot], write: Write) -> None:
    wanted = {slot.name for slot in slots}
    with file.open("xb", buffering=0) as stream:
        _write_all(stream.fileno(), memoryview(header), write)
        for window, contents in store.iter_host():
            for piece in window.pieces:
                start = piece.slot.offset + piece.start - window.start
                if piece.slot.name in wanted:
                    part = contents[start : start + piece.end - piece.start]
                    _write_all(stream.fileno(), memoryview(part.numpy()), write)  # type: ignore[arg-type]
        os.fsync(stream.fileno())


def _write_all(file: int, data: memoryview, write: Write) -> None:
    while data:
        data = data[write(file, data) :]


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size(slots: list[Slot]) -> int:
    return sum(slot.num_bytes for slot in slots)
