"""A store of files: one for each block, in a directory for each realm, within one budget for all of them.

    ROOT/lock              eight bytes that change with every write; flock'ed by whoever writes
    ROOT/users             locked by every process that has the root open (`users`)
    ROOT/writing           the block that is being written: renamed once it is whole
    ROOT/REALM/NAME.kv     a block; its time of change says how long it is worth keeping (`budget`)

Any number of processes may share a root. Readers take no lock: a file is whole or not there, and says itself what it
is. Nothing is synced: what a power failure tears is a miss, as any other damage is. Other files are left alone.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from dormouse_worker.kv_store.block_file import (
    HEADER_BYTES,
    REALM_BYTES,
    SUFFIX,
    check_block,
    pack_header,
    path_below,
)
from dormouse_worker.kv_store.budget import PAGE_BYTES, Budget, bonus_ns, taken_bytes
from dormouse_worker.kv_store.interface import Block, BlockName, Miss
from dormouse_worker.kv_store.users import Users

logger = logging.getLogger(__name__)

_REALM = re.compile(rf"[0-9a-f]{{{2 * REALM_BYTES}}}")
_NS_BETWEEN = 1000  # of two blocks of one `write`
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_OWN_BYTES = 2 * PAGE_BYTES  # the lock, and what directories take at least


class FileBlockStore:
    """Implements `BlockStore` over one realm of a root."""

    def __init__(
        self, root: Path, realm: bytes, limit_bytes: int, *, clock_ns: Callable[[], int] = time.time_ns
    ) -> None:
        """Make the directories, and look at what is there. Raises OSError where that cannot be."""
        assert len(realm) == REALM_BYTES
        self._root = root
        self._realm = realm
        self._directory = root / realm.hex()
        self._clock_ns = clock_ns
        self._newest_ns = 0  # a clock that goes back makes nothing older
        self._budget = Budget(max(0, limit_bytes - _OWN_BYTES))
        self._generation = -1
        self._names: set[BlockName] = set()  # of this realm; replaced or changed by one operation each
        self._busy = Lock()  # whoever changes the budget
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory.mkdir(mode=0o700, exist_ok=True)
        self._lock_fd = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._users = Users(root / "users")
        with self._busy:
            self._look()

    def __repr__(self) -> str:
        return f"FileBlockStore({self._directory.name[:12]}, {len(self._names)} blocks, {self._budget!r})"

    @property
    def num_bytes(self) -> int:
        """See `BlockStore`."""
        return self._budget.num_bytes

    def capacity(self, num_bytes: int) -> int:
        """See `BlockStore`."""
        return self._budget.limit_bytes // taken_bytes(HEADER_BYTES + num_bytes)

    def has(self, name: BlockName) -> bool:
        """See `BlockStore`."""
        return name in self._names

    def read(self, name: BlockName, into: memoryview) -> Miss | None:
        """See `BlockStore`. What is damaged is removed."""
        header = bytearray(HEADER_BYTES)
        try:
            fd = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._names.discard(name)
            return Miss.ABSENT
        except OSError:
            return Miss.IO
        try:
            num_bytes = os.fstat(fd).st_size
            got = os.preadv(fd, [header, into], 0)
        except OSError:
            return Miss.IO
        finally:
            os.close(fd)
        wrong = check_block(bytes(header[:got]), self._realm, name, into)
        if wrong in {None, Miss.DAMAGED} and not got == num_bytes == HEADER_BYTES + into.nbytes:
            wrong = Miss.TRUNCATED
        if wrong in {Miss.TRUNCATED, Miss.DAMAGED, Miss.OTHER}:
            self.drop([name])
        return wrong

    def expect(self, names: Sequence[BlockName]) -> None:
        """See `BlockStore`. The operating system reads ahead by itself."""

    def write(self, blocks: Sequence[Block], recompute_s: float = 0.0) -> dict[Miss, int]:
        """See `BlockStore`."""
        lost: Counter[Miss] = Counter()
        try:
            with self._writing():
                used_ns = self._now_ns()
                for place, block in enumerate(blocks):
                    if why := self._keep(block, used_ns - place * _NS_BETWEEN, recompute_s):
                        lost[why] += 1
        except OSError as error:
            logger.warning("nothing can be written to %s: %s", self._root, error)
            self._generation = -1  # look anew
            lost = Counter({Miss.IO: len(blocks)})
        return dict(lost)

    def touch(self, names: Sequence[BlockName], recompute_s: float = 0.0) -> None:
        """See `BlockStore`. Whoever makes room looks at the times once more, so no lock is needed."""
        used_ns = self._now_ns()
        for place, name in enumerate(names):
            path = self._path(name)
            with suppress(OSError):
                time_ns = used_ns - place * _NS_BETWEEN + bonus_ns(recompute_s, path.stat().st_size)
                os.utime(path, ns=(time_ns, time_ns))

    def drop(self, names: Sequence[BlockName]) -> None:
        """See `BlockStore`."""
        with suppress(OSError), self._writing():
            for name in names:
                self._remove(self._key(name))

    def clear(self) -> None:
        """See `BlockStore`."""
        with suppress(OSError), self._writing():
            for key in [key for key in self._budget.sizes if key.startswith(self._directory.name)]:
                self._remove(key)

    def look(self, names: Sequence[BlockName]) -> int:
        """See `BlockStore`. Whoever writes next counts what was found."""
        found = [name for name in names if name not in self._names and self._is_there(name)]
        self._names.update(found)
        return len(found)

    def is_shared(self) -> bool:
        """See `BlockStore`."""
        return self._users.has_others()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Be the only one who writes, and know what there is. Raises OSError."""
        with self._busy:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
            try:
                if self._read_generation() != self._generation:
                    self._look()
                (self._root / "writing").unlink(missing_ok=True)  # of somebody who died
                yield
            finally:
                try:
                    self._generation = (self._generation + 1) % (1 << 63)
                    os.pwrite(self._lock_fd, self._generation.to_bytes(8, "little"), 0)
                finally:
                    fcntl.flock(self._lock_fd, fcntl.LOCK_UN)

    def _read_generation(self) -> int:
        return int.from_bytes(os.pread(self._lock_fd, 8, 0), "little") % (1 << 63)

    def _look(self) -> None:
        """Take what the root holds, of all realms. What goes while we look is not there."""
        self._generation = self._read_generation()
        budget, names = Budget(self._budget.limit_bytes), set()
        for directory in (entry for entry in os.scandir(self._root) if _REALM.fullmatch(entry.name)):
            with suppress(OSError):
                for entry in os.scandir(directory.path):
                    if not entry.name.endswith(SUFFIX):
                        continue
                    with suppress(OSError):
                        stat = entry.stat(follow_symlinks=False)
                        budget.set(f"{directory.name}/{entry.name}", stat.st_mtime_ns, taken_bytes(stat.st_size))
                        if directory.name == self._directory.name:
                            with suppress(ValueError):
                                names.add(bytes.fromhex(entry.name.removesuffix(SUFFIX)))
        self._budget, self._names = budget, names

    def _keep(self, block: Block, used_ns: int, recompute_s: float) -> Miss | None:
        """Write one block and count it; return why not."""
        key, path = self._key(block.name), self._path(block.name)
        num_bytes = HEADER_BYTES + block.data.nbytes
        time_ns = used_ns + bonus_ns(recompute_s, num_bytes)
        if key in self._budget:
            with suppress(OSError):
                os.utime(path, ns=(time_ns, time_ns))
                self._budget.set(key, time_ns, taken_bytes(num_bytes))
                return None
        if not self._make_room(taken_bytes(num_bytes), time_ns):
            return Miss.NO_ROOM
        try:
            self._write_file(path, pack_header(self._realm, block.name, block.data), block.data, time_ns)
        except OSError as error:
            with suppress(OSError):
                (self._root / "writing").unlink(missing_ok=True)
            return Miss.NO_ROOM if error.errno in _FULL else Miss.IO
        self._budget.set(key, time_ns, taken_bytes(num_bytes))
        self._names.add(block.name)
        return None

    def _write_file(self, path: Path, header: bytes, data: memoryview, time_ns: int) -> None:
        temporary = self._root / "writing"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            if (written := os.writev(fd, [header, data])) != len(header) + data.nbytes:
                raise OSError(errno.ENOSPC, f"only {written} bytes were written")
            os.utime(fd, ns=(time_ns, time_ns))
        finally:
            os.close(fd)
        self._directory.mkdir(mode=0o700, exist_ok=True)
        temporary.rename(path)

    def _make_room(self, needed_bytes: int, new_ns: int) -> bool:
        """Let go what is worth least until so many bytes fit; False if they never do, or all there is is dearer."""
        if needed_bytes > self._budget.limit_bytes:
            return False
        for key, time_ns in self._budget.first_to_go(needed_bytes):
            try:
                stat = (self._root / key).stat()
            except OSError:
                self._budget.remove(key)
                self._forget_name(key)
                continue
            if time_ns >= new_ns:
                self._budget.set(key, stat.st_mtime_ns, taken_bytes(stat.st_size))
                return False
            if stat.st_mtime_ns > time_ns:  # used since we looked
                self._budget.set(key, stat.st_mtime_ns, taken_bytes(stat.st_size))
            else:
                self._remove(key)
        return self._budget.num_bytes + needed_bytes <= self._budget.limit_bytes

    def _remove(self, key: str) -> None:
        (self._root / key).unlink(missing_ok=True)
        self._budget.remove(key)
        self._forget_name(key)

    def _forget_name(self, key: str) -> None:
        realm, file = key.split("/")
        if realm == self._directory.name:
            with suppress(ValueError):
                self._names.discard(bytes.fromhex(file.removesuffix(SUFFIX)))

    def _now_ns(self) -> int:
        self._newest_ns = max(self._clock_ns(), self._newest_ns + 1)
        return self._newest_ns

    def _key(self, name: BlockName) -> str:
        return path_below(self._realm, name)

    def _is_there(self, name: BlockName) -> bool:
        return os.access(f"{self._directory}/{name.hex()}{SUFFIX}", os.F_OK)  # a Path takes four times as long

    def _path(self, name: BlockName) -> Path:
        return self._directory / f"{name.hex()}{SUFFIX}"
