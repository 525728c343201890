"""The two files of a batch: requests, checked before anything is sent, and answers, which a later run goes on with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dormouse_cli.batch.lines import BadLine, Item, parse_answered, parse_request
from dormouse_cli.errors import CommandFailed
from dormouse_cli.exit_codes import ExitCode

MAX_TOLD = 10  # of the lines that are wrong


@dataclass(frozen=True, slots=True)
class Checked:
    """What a file of requests holds."""

    custom_ids: Set[str]
    first_model: str  # "" if the first request names none


def check(path: Path) -> Checked:
    """Read all requests. Raises CommandFailed naming the lines that are wrong, the first ten of them."""
    seen: dict[str, int] = {}  # custom_id → its line
    wrong: list[str] = []
    models: list[str] = []
    for number, line in _numbered(path):
        try:
            item = _unlike(parse_request(line), seen)
        except BadLine as error:
            wrong.append(f"{path}:{number}: {error}")
            if len(wrong) == MAX_TOLD:
                break
            continue
        seen[item.custom_id] = number
        if not models:
            models.append(str(item.body.get("model", "")))
    if wrong:
        raise CommandFailed("nothing was sent\n" + "\n".join(wrong), code=ExitCode.USAGE)
    if not seen:
        raise CommandFailed(f"{path} has no requests", code=ExitCode.USAGE)
    return Checked(seen.keys(), models[0])


def _unlike(item: Item, seen: Mapping[str, int]) -> Item:
    """Return the request if no other has its id. Raises BadLine."""
    if item.custom_id in seen:
        raise BadLine(f"custom_id {item.custom_id[:60]!r} is already in line {seen[item.custom_id]}")
    return item


def requests(path: Path, without: Set[str]) -> Iterator[Item]:
    """Yield the requests of a file that was checked, but for those that are answered."""
    for _, line in _numbered(path):
        item = parse_request(line)
        if item.custom_id not in without:
            yield item


def resume(path: Path, known: Set[str]) -> set[str]:
    """Keep of a file of answers what is done, and return its ids; the file is replaced as a whole, or not at all.

    Raises CommandFailed if it is no file of answers, or one of other requests: nothing of it is lost then.
    """
    if not path.exists():
        return set()
    done: set[str] = set()
    kept = path.with_name(f"{path.name}.resumed")
    try:
        with kept.open("w", encoding="utf-8") as out:
            for custom_id, line in _answered(path, known):
                if custom_id not in done:
                    done.add(custom_id)
                    out.write(line)
        kept.replace(path)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be continued: {error}") from error
    finally:
        kept.unlink(missing_ok=True)
    return done


def _answered(path: Path, known: Set[str]) -> Iterator[tuple[str, str]]:
    """Yield the lines of what is done, each with its custom_id. Raises CommandFailed."""
    for number, line in _numbered(path):
        if not line.endswith("\n"):
            return  # the run before was cut while it wrote
        try:
            custom_id, is_done = parse_answered(line, known)
        except BadLine as error:
            words = f"{path}:{number}: {error}; name another file with --output"
            raise CommandFailed(words, code=ExitCode.USAGE) from error
        if is_done:
            yield custom_id, line


@contextmanager
def appending(path: Path) -> Iterator[Callable[[str], None]]:
    """Give what writes a line, which is in the file when it returns. Both raise CommandFailed."""
    with _or_unwritable(path), path.open("a", encoding="utf-8", errors="backslashreplace") as out:

        def write(line: str) -> None:
            with _or_unwritable(path):
                out.write(line)
                out.flush()

        yield write


@contextmanager
def _or_unwritable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error}") from error


def are_one(first: Path, second: Path) -> bool:
    """Return whether both paths mean one file."""
    return second.exists() and first.samefile(second)


def _numbered(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers. Raises CommandFailed."""
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, line
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{path} cannot be read: {error}", code=ExitCode.USAGE) from error
