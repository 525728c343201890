"""Writes a rank's weights as `load_format=sharded_state` reads them: whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from dormouse_worker.common.errors import InvalidArgument, ModelInvalid, StorageFull, WorkerError, WrongState
from dormouse_worker.common.layout import Layout
from dormouse_worker.files.model_files import ModelFiles
from dormouse_worker.files.sharded_files import make_metadata, shard_name
from dormouse_worker.model.parallel.communicator import ALONE, Communicator
from dormouse_worker.model.tensors import FILE_TYPES, as_array, name_of
from dormouse_worker.model.weights.layout import PART, Slot
from dormouse_worker.model.weights.store import WeightStore

COMPANIONS = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")  # what a worker reads beside the weights
_INDEX_SUFFIX = ".safetensors.index.json"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NAMES = {name: stored for stored, name in FILE_TYPES.items()}
_HEADER_ALIGNMENT = 8

Write = Callable[[int, memoryview], int]


def save_sharded_state(
    store: WeightStore,
    model_path: Path,
    directory: Path,
    *,
    communicator: Communicator = ALONE,
    write: Write = os.write,
) -> None:
    """Make a new model directory with these weights and the model's small files.

    In a group every rank calls this, and writes its own file into one directory that all of them see. Raises
    InvalidArgument about the directory or a model whose weights cannot be stored so, WrongState while the weights
    sleep, StorageFull; nothing is left of what was begun then, whichever rank it was that failed. Raises RankLost.
    """
    if store.is_asleep:
        raise WrongState("the weights sleep; wake them and save again")
    saving = _Saving(store, model_path, directory, communicator.layout, write)
    failure: WorkerError | None = None
    try:
        for step in (saving.begin, saving.write_own, saving.finish):
            if failure is None:
                failure = saving.failure_of(step)
            communicator.barrier()
    finally:
        saving.tidy()
    if failure is None and not saving.is_there:
        failure = InvalidArgument(f"directory is {str(directory)!r}; rank 0 could not save there, and says why")
    if failure is not None:
        raise failure


class _Saving:
    """One rank's part of a save; rank 0 makes the directory and gives it its name in the end."""

    def __init__(self, store: WeightStore, model_path: Path, directory: Path, layout: Layout, write: Write) -> None:
        self._store, self._model_path, self._directory = store, model_path, directory
        self._layout, self._write = layout, write
        self._target = directory.parent.resolve() / directory.name
        owner = os.getpid() if layout.world_size == 1 else "group"
        self._partial = self._target.parent / f".{directory.name}.{owner}.partial"

    def begin(self) -> None:
        """Let rank 0 make the directory under a name of its own."""
        _storable(self._store)
        _check_target(self._directory, self._model_path)
        if self._layout.rank == 0:
            shutil.rmtree(self._partial, ignore_errors=True)
            self._partial.mkdir()
            _copy_companions(self._model_path, self._partial)

    def write_own(self) -> None:
        """Write this rank's file."""
        slots, name = _storable(self._store), self._name(self._layout.rank)
        metadata = make_metadata(
            (self._partial / "config.json").read_bytes(), self._layout.rank, self._layout.world_size
        )
        begun = self._partial / f"{name}.partial"
        _write_file(begun, _header(slots, metadata), self._store, slots, self._write)
        begun.rename(self._partial / name)
        _sync(self._partial)

    def finish(self) -> None:
        """Let rank 0 name the directory if every rank wrote its file."""
        if self._layout.rank != 0:
            return
        for rank in range(self._layout.world_size):
            if not (self._partial / self._name(rank)).is_file():
                raise InvalidArgument(
                    f"directory is {str(self._directory)!r}; rank {rank} wrote nothing there: it failed, or does not "
                    "see the same volume"
                )
        self._partial.rename(self._target)
        _sync(self._target.parent)

    @property
    def is_there(self) -> bool:
        """Return whether this rank's file lies where it shall."""
        return (self._target / self._name(self._layout.rank)).is_file()

    def tidy(self) -> None:
        """Remove what was begun."""
        if self._layout.rank == 0:
            shutil.rmtree(self._partial, ignore_errors=True)

    def failure_of(self, step: Callable[[], None]) -> WorkerError | None:
        """Take one step; return why it could not be taken."""
        try:
            step()
        except WorkerError as error:
            return error
        except OSError as error:
            return self._explain(error)
        return None

    def _explain(self, error: OSError) -> WorkerError:
        failure: WorkerError
        if error.errno in _FULL:
            size = _size(_storable(self._store))
            failure = StorageFull(f"{self._target}: no room for {size} bytes of weights: {error.strerror}")
        else:
            failure = InvalidArgument(f"directory is {str(self._directory)!r}, which cannot be written: {error}")
        failure.__cause__ = error
        return failure

    def _name(self, rank: int) -> str:
        return shard_name(rank, self._layout.world_size)


def check_shard(files: ModelFiles, slots: Mapping[str, Slot]) -> None:
    """Raise ModelInvalid, naming the tensor, unless the files hold exactly what the module's memory needs."""
    for name in files.tensors.keys() - slots.keys():
        raise ModelInvalid(f"{files.path}: {name} is in the sharded state, but has no place of its own in the model")
    for name, slot in slots.items():
        stored = files.tensors.get(name)
        if stored is None:
            raise ModelInvalid(f"{files.path}: {name}, which config.json asks for, is not in the sharded state")
        if (FILE_TYPES.get(stored.dtype), stored.shape) != (name_of(slot.dtype), slot.shape):
            raise ModelInvalid(
                f"{stored.file}: {name} is {stored.dtype} {list(stored.shape)}, {_NAMES.get(name_of(slot.dtype))} "
                f"{list(slot.shape)} is needed; set the dtype that it was saved with, or use load_format auto"
            )


def _storable(store: WeightStore) -> list[Slot]:
    for slot in store.stored_slots:
        if PART in slot.name or name_of(slot.dtype) not in _NAMES:
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
        header[slot.name] = {"dtype": _NAMES[name_of(slot.dtype)], "shape": slot.shape, "data_offsets": (start, end)}
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
                    _write_all(stream.fileno(), memoryview(as_array(part)), write)
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
