"""What was refused in the last actions on a deployment, and which of it is told to its user. Pure.

What the API server says of the object itself (it is invalid, or forbidden) is told at once. Whatever else it answers
can be a passing trouble, and some of what never passes looks the same: a field of a pod that no schema knows is an
internal error (HTTP 500) to a server-side apply. So that is told once an object was refused twice in the same words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dormouse_kube.errors import Conflict, Forbidden, Invalid, KubeError, NotFound

MAX_WORDS = 1000  # characters of an answer that a condition repeats
TIMES = 2  # in a row, in the same words
STALE_TIMES = 6  # of what a watch that is late brings about, too
_TOO_MANY = 429  # come later: that is no refusal, and one more write would make it worse


class Heard(NamedTuple):
    """What the API server said of an object's write."""

    words: str
    times: int  # in a row
    told_after: int

    @property
    def is_told(self) -> bool:
        """Return whether the user should read it."""
        return self.times >= self.told_after


class Refusals(NamedTuple):
    """Why the last actions on a deployment failed, and what was lost of the last status."""

    by_pod: Mapping[str, str] = {}  # workers' words
    forbidden: str = ""  # the API server's words, where the operator has no right to do something
    heard: Mapping[str, Heard] = {}  # by object, as "Kind name"
    dropped: tuple[str, ...] = ()  # fields of the last status that the API server did not keep

    @property
    def told(self) -> Mapping[str, str]:
        """Return the API server's words that the user should read, by object."""
        return {about: heard.words for about, heard in self.heard.items() if heard.is_told}


def hear(known: Refusals, errors: Mapping[str, KubeError]) -> Mapping[str, Heard]:
    """Return what was said so far, after a pass in which these objects, by "Kind name", were refused."""
    return {about: _next(known.heard.get(about), error) for about, error in errors.items() if _is_refusal(error)}


def _next(last: Heard | None, error: KubeError) -> Heard:
    words = str(error)
    words = words if len(words) <= MAX_WORDS else f"{words[:MAX_WORDS]}…"
    return Heard(words, last.times + 1 if last and last.words == words else 1, _told_after(error))


def _is_refusal(error: KubeError) -> bool:
    """Tell an answer to what was asked from none at all, and from a server that is too busy to answer."""
    return isinstance(error, Forbidden | Invalid) or error.status not in {0, _TOO_MANY}


def _told_after(error: KubeError) -> int:
    if isinstance(error, Forbidden | Invalid):  # about the object: only another one helps
        return 1
    return STALE_TIMES if isinstance(error, Conflict | NotFound) else TIMES
