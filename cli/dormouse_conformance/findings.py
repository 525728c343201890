"""What a check may find: what was expected and what was seen, or why it could not be tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc


class Missed(Exception):
    """The worker breaks the rule."""

    def __init__(self, expected: str, seen: object) -> None:
        super().__init__(f"expected {expected}, saw {seen}")
        self.expected = expected
        self.seen = str(seen)


class Blocked(Exception):
    """The rule could not be tried, as the worker did not come to where it could be."""


class Unclaimed(Exception):
    """The rule is about what the worker does not claim; the message names what it would have to."""


@dataclass(slots=True, unsafe_hash=True)  # not frozen: context managers write an exception's traceback
class Refused(Exception):
    """A call ended with a status that is not OK."""

    method: str
    code: grpc.StatusCode
    message: str
    retry_after_s: float | None
    reason: str

    def __str__(self) -> str:
        """Return what was seen."""
        return f"{self.method} ended with {self.code.name}: {self.message}"


def require(holds: object, expected: str, seen: object) -> None:
    """Raise Missed unless it holds."""
    if not holds:
        raise Missed(expected, seen)


def require_equal(what: str, expected: object, seen: object) -> None:
    """Raise Missed unless both are equal."""
    require(expected == seen, f"{what}: {expected}", seen)


def require_refusal(
    call: Callable[[], object], *codes: grpc.StatusCode, what: str, naming: Sequence[object] = ()
) -> Refused:
    """Return how the call was refused. Raises Missed unless it was, with one of the codes and with these words."""
    wanted = f"{what}: {' or '.join(code.name for code in codes)}"
    try:
        answer = call()
    except Refused as refusal:
        require(refusal.code in codes, wanted, refusal)
        missing = [str(word) for word in naming if str(word) not in refusal.message]
        require(not missing, f"{what}: a message that names {', '.join(missing)}", refusal.message)
        return refusal
    raise Missed(wanted, f"success: {str(answer)[:200]!r}")


def require_unavailable(call: Callable[[], object], what: str) -> None:
    """Raise Missed unless the call is refused for now, with RetryInfo."""
    refusal = require_refusal(call, grpc.StatusCode.UNAVAILABLE, what=what)
    require(refusal.retry_after_s is not None, f"{what}: google.rpc.RetryInfo in the details", "no RetryInfo")
