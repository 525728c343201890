"""One device's books in a folder that processes share, whatever pods they are in. Stateless but for the open files.

    FOLDER/memory      the device's bytes, as text: whoever offers the device writes it
    FOLDER/ledger      the page of `ledger`; its lock is held for each step
    FOLDER/rows/N      the lock of row N, held by the process whose row it is; in it, who that is
    FOLDER/violations  a line whenever something went further than ever that should not

The kernel lets go of the locks of a process that ends, however it ends: who does not hold his row's any more has given
everything back. A pid would not tell, for each pod counts its own. A step reads one page and writes it at once, so that
a process killed within one has done it or has not.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.model.device.driver import DeviceOutOfMemory
from dormouse_worker.model.device.ledger import MAX_ROWS, PAGE_BYTES, Books, Marks, Row, from_page, to_page

MEMORY, LEDGER, ROWS, VIOLATIONS = "memory", "ledger", "rows", "violations"
FILE_MODE, FOLDER_MODE = 0o666, 0o777  # everybody's: a pod's user is nobody's, and a test's is somebody else's


def offer_device(folder: Path, total_bytes: int) -> None:
    """Make a device, or let one that is there have so many bytes. Processes that use it already stay in its books."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(FOLDER_MODE)
    (folder / MEMORY).write_text(f"{total_bytes}\n")


class LedgerFile:
    """Reads and changes the books of one device. Safe in any thread."""

    def __init__(self, folder: Path) -> None:
        """Open it. Raises InvalidSettings if the folder holds no device."""
        self.folder = folder
        self._thread = threading.Lock()  # a file's lock keeps other openings of the file off, not other threads
        self._row_files: dict[int, int] = {}  # opened to ask whether a process lives
        try:
            self.total_bytes = int((folder / MEMORY).read_text())
            _make_rows(folder / ROWS)
            self._page = _open(folder / LEDGER)
        except (OSError, ValueError) as error:
            raise InvalidSettings(f"{folder} is no stand-in device: {error}") from error

    def __repr__(self) -> str:
        return f"LedgerFile({self.folder}, {self.total_bytes} bytes)"

    @contextmanager
    def locked(self, own: int | None = None) -> Iterator[Books]:
        """Let nobody else change the books; give those of all that live. `own` is the caller's row, who does."""
        with self._thread:
            fcntl.flock(self._page, fcntl.LOCK_EX)
            try:
                books = from_page(os.pread(self._page, PAGE_BYTES, 0), self.total_bytes)
                dead = [number for number in books.rows if number != own and not self._is_held(number)]
                yield books.leave(*dead) if dead else books
            finally:
                fcntl.flock(self._page, fcntl.LOCK_UN)

    def write(self, books: Books) -> None:
        """Keep what the books say now. Only while `locked`."""
        os.pwrite(self._page, to_page(books), 0)

    def open_row(self, who: str) -> tuple[int, int]:
        """Return a free row's number, and the file whose being open holds it. Only while `locked`.

        Raises InvalidSettings if as many processes use the device as there are rows.
        """
        for number in range(MAX_ROWS):
            file = _open(self.folder / ROWS / str(number))
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.truncate(file, 0)
                os.pwrite(file, who.encode(), 0)
                return number, file
            os.close(file)
        raise InvalidSettings(f"{self.folder} is used by {MAX_ROWS} processes; it can have no more")

    def name_of(self, number: int) -> str:
        """Return whose row this is, or was last."""
        return (self.folder / ROWS / str(number)).read_text()

    def complain(self, line: str) -> None:
        """Add a line to what should not be. Only while `locked`."""
        file = _open(self.folder / VIOLATIONS, os.O_APPEND)
        try:
            os.write(file, f"{line}\n".encode())
        finally:
            os.close(file)

    def close(self) -> None:
        """Close all files."""
        for file in (self._page, *self._row_files.values()):
            os.close(file)
        self._row_files = {}

    def _is_held(self, number: int) -> bool:
        file = self._row_files.get(number)
        if file is None:
            file = self._row_files[number] = _open(self.folder / ROWS / str(number))
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(file, fcntl.LOCK_UN)
        return False


class DeviceShare:
    """One process's row, from its opening to `close` or the process's end. Every verb is one step in the books."""

    def __init__(self, folder: Path, who: str, *, context_bytes: int = 0, budget_bytes: int = 0) -> None:
        """Open a row and take the context. Raises InvalidSettings, DeviceOutOfMemory: there is no row then."""
        self._who = who
        self._ledger = LedgerFile(folder)
        try:
            with self._ledger.locked() as books:
                self._number, self._row = self._ledger.open_row(who)
                entered = books.enter(self._number, budget_bytes)
                self._keep(books, entered.open_context(self._number, context_bytes))
        except BaseException:
            self.close()
            raise

    _row = -1  # the file that holds the row, once it is opened

    def __repr__(self) -> str:
        return f"DeviceShare({self._who}, {self._ledger!r})"

    @property
    def total_bytes(self) -> int:
        """Return the device's memory."""
        return self._ledger.total_bytes

    def free_bytes(self) -> int:
        """Return what anybody could take now."""
        with self._ledger.locked(self._number) as books:
            return books.free_bytes

    def own(self) -> Row:
        """Return what this process holds."""
        with self._ledger.locked(self._number) as books:
            return books.rows.get(self._number, Row())

    def take(self, num_bytes: int) -> None:
        """Hold so much more. Raises DeviceOutOfMemory, and has taken nothing then."""
        with self._ledger.locked(self._number) as books:
            try:
                self._keep(books, books.take(self._number, num_bytes))
            except DeviceOutOfMemory as error:
                self._keep(books, books.refuse(error.missing_bytes))
                raise

    def give(self, num_bytes: int) -> None:
        """Hold so much less."""
        with self._ledger.locked(self._number) as books:
            self._keep(books, books.give(self._number, num_bytes))

    @contextmanager
    def promised(self, num_bytes: int) -> Iterator[None]:
        """Within the block, `take` is given this much in all. Raises DeviceOutOfMemory and has taken nothing then."""
        self._promise(num_bytes)
        try:
            yield
        finally:
            self._promise(0)

    def close(self) -> None:
        """Give everything back, and the row."""
        if self._row >= 0:
            with self._ledger.locked(self._number) as books:
                self._ledger.write(books.leave(self._number))
            os.close(self._row)
        self._row = -1
        self._ledger.close()

    def _promise(self, num_bytes: int) -> None:
        with self._ledger.locked(self._number) as books:
            self._keep(books, books.promise(self._number, num_bytes))

    def _keep(self, before: Books, after: Books) -> None:
        """Write the books, and in words what in them went further than ever that should not."""
        self._ledger.write(after)
        if before.marks == after.marks:
            return
        row, old, new = after.rows.get(self._number, Row()), before.marks, after.marks
        if new.over_size_bytes > old.over_size_bytes:
            self._ledger.complain(f"{self._who} misses {new.over_size_bytes} bytes of {after.total_bytes}")
        if new.over_budget_bytes > old.over_budget_bytes:
            self._ledger.complain(f"{self._who} holds {row.used_bytes} bytes of a budget of {row.budget_bytes}")
        if new.most_awake > max(1, old.most_awake):
            others = sorted(self._ledger.name_of(number) for number in after.awake if number != self._number)
            self._ledger.complain(f"{self._who} is awake beside {', '.join(others)}")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a device's books say, for whoever looks from outside."""

    books: Books
    names: Mapping[int, str]  # whose rows they are
    violations: tuple[str, ...]

    @property
    def marks(self) -> Marks:
        """Return how far it ever went."""
        return self.books.marks


def read_usage(folder: Path) -> Usage:
    """Return how a device is used, and was. Raises InvalidSettings if the folder holds none."""
    ledger = LedgerFile(folder)
    try:
        with ledger.locked() as books:
            books.check_integrity()
            names = {number: ledger.name_of(number) for number in books.rows}
            lines = (folder / VIOLATIONS).read_text().splitlines() if (folder / VIOLATIONS).exists() else ()
            return Usage(books, names, tuple(lines))
    finally:
        ledger.close()


def _open(path: Path, flags: int = 0) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, FILE_MODE)
    with suppress(PermissionError):  # somebody else made it, with this mode
        os.fchmod(file, FILE_MODE)
    return file


def _make_rows(folder: Path) -> None:
    with suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(FOLDER_MODE)
