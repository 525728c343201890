"""The adapters by the names under which requests ask for them: what is wanted, and what the engine has of it.

A name means one digest at a time. What is wanted outlives every engine process; what is loaded does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

import grpc

from dormouse_api.status import CallError
from dormouse_worker.common.adapters import NAME, AdapterInfo

MAX_NAMES = 4096
RETRY_PENDING_S = 1.0


@dataclass(frozen=True, slots=True)
class WantedAdapter:
    """One name, and what became of it."""

    name: str
    source: str  # the absolute path of its directory, or hf://ORG/NAME@REVISION
    digest: str = ""  # what it has to be; "" = anything
    is_pinned: bool = False
    token: str = ""  # the hub's, SECRET/KEY; "" = the one of this worker, if it has any
    loaded: AdapterInfo | None = None  # None = not yet, or not any more
    failure: tuple[str, str] | None = None  # reason and message of the last attempt
    successor: WantedAdapter | None = None  # what the name shall mean once that is loaded
    progress: str = ""  # how far what the name shall mean is

    @property
    def target(self) -> WantedAdapter:
        """Return what the name shall mean."""
        return self.successor or self

    @property
    def is_settled(self) -> bool:
        """Return whether the engine holds what the name shall mean."""
        return self.loaded is not None and self.successor is None

    def wants_same(self, other: WantedAdapter) -> bool:
        """Return whether both want the same. Who names no digest takes what is there."""
        is_same = (self.source, self.is_pinned, self.token) == (other.source, other.is_pinned, other.token)
        return is_same and (not other.digest or self.digest == other.digest)


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """What a request's model name means."""

    adapter: str = ""  # the name of an adapter; "" = the base model
    digest: str = ""
    num_virtual_tokens: int = 0  # of a soft prompt: they count against the model's length


BASE = ChosenModel()


class AdapterBoard:
    """Owns the names."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        """`on_change` hears of every change."""
        self.asked_as = ""  # what the caller calls the set that was asked for last
        self.version = 0  # counts changes
        self.awaited: Counter[str] = Counter()  # names of adapters that requests wait for
        self._wanted: dict[str, WantedAdapter] = {}
        self._on_change = on_change

    def __repr__(self) -> str:
        return f"AdapterBoard({', '.join(f'{each.name}={_state(each)}' for each in self)})"

    def __iter__(self) -> Iterator[WantedAdapter]:
        """Yield all of them, by name."""
        return (self._wanted[name] for name in sorted(self._wanted))

    def __len__(self) -> int:
        """Return how many names there are."""
        return len(self._wanted)

    def get(self, name: str) -> WantedAdapter | None:
        """Return what a name stands for."""
        return self._wanted.get(name)

    def check(self, wanted: WantedAdapter, model_names: Sequence[str]) -> None:
        """Raise CallError INVALID_ARGUMENT, RESOURCE_EXHAUSTED where `want` may not be called."""
        _check_name(wanted.name, model_names)
        if wanted.name not in self._wanted and len(self._wanted) >= MAX_NAMES:
            raise CallError(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_NAMES} adapters have names already; remove one first"
            )

    def check_all(self, wanted: Sequence[WantedAdapter], model_names: Sequence[str]) -> None:
        """Raise CallError INVALID_ARGUMENT, RESOURCE_EXHAUSTED where `want_all` may not be called."""
        if len(wanted) > MAX_NAMES:
            raise _invalid(f"adapters are {len(wanted)}; allowed are {MAX_NAMES}")
        for each in wanted:
            _check_name(each.name, model_names)
        counts = Counter(each.name for each in wanted)
        if double := next((name for name, count in counts.items() if count > 1), ""):
            raise _invalid(f"name is {double!r} more than once; each adapter has a name of its own")

    def want(self, wanted: WantedAdapter) -> None:
        """Note a name, or what it shall mean from now on."""
        self._put(wanted)

    def want_all(self, wanted: Iterable[WantedAdapter], asked_as: str) -> list[WantedAdapter]:
        """Note what there shall be, and nothing else; return what is forgotten. What is loaded is served until then."""
        shall_be = {each.name: each for each in wanted}
        gone = [each for each in self if each.name not in shall_be]
        for each in gone:
            del self._wanted[each.name]
        for name, new in shall_be.items():
            now = self._wanted.get(name)
            self._wanted[name] = _next(now, new) if now else new
        self.asked_as = asked_as
        self._changed()
        return gone

    def forget(self, name: str) -> WantedAdapter | None:
        """Forget a name; return what it stood for."""
        gone = self._wanted.pop(name, None)
        self._changed()
        return gone

    def note_loaded(self, name: str, info: AdapterInfo) -> None:
        """The engine has it. The name means this digest until another is asked for, whatever becomes of the files."""
        if (wanted := self._wanted.get(name)) is not None:
            self._put(replace(wanted.target, digest=info.digest, loaded=info, failure=None, progress=""))

    def note_failed(self, name: str, reason: str, message: str) -> None:
        """The engine cannot have it; what the name meant before, it means on."""
        if (wanted := self._wanted.get(name)) is not None:
            kept = wanted.loaded if wanted.successor else None
            self._put(replace(wanted, loaded=kept, failure=(reason, message), progress=""))

    def note_progress(self, source: str, words: str) -> None:
        """The files of a source are on their way."""
        for each in self:
            if each.target.source == source and not each.is_settled:
                self._put(replace(each, progress=words))

    def note_engine_lost(self) -> None:
        """Nothing is loaded any more."""
        self._wanted = {name: replace(each.target, loaded=None, failure=None) for name, each in self._wanted.items()}
        self._changed()

    def is_used(self, digest: str) -> bool:
        """Return whether some name means it."""
        return any(each.loaded is not None and each.loaded.digest == digest for each in self)

    def pins(self, digest: str, *, beside: str = "") -> bool:
        """Return whether a name, `beside` left out, wants its slot kept: several names may mean one adapter."""
        meaning = (each for each in self if each.loaded is not None and each.loaded.digest == digest)
        return any(each.is_pinned for each in meaning if each.name != beside)

    def names_of(self, digests: Set[str]) -> set[str]:
        """Return the names that mean these; a digest that has none any more is told by its beginning."""
        names = {each.loaded.digest: each.name for each in self if each.loaded is not None}
        return {names.get(digest, digest[:12]) for digest in digests}

    def on_its_way(self, name: str, model_names: Sequence[str]) -> str:
        """Return the name of the adapter that a request means if it was not tried yet; "" = nothing is to come."""
        wanted = None if name in model_names else self._meant(name, model_names)
        return wanted.name if wanted and not wanted.loaded and not wanted.failure else ""

    def require(self, name: str, model_names: Sequence[str]) -> WantedAdapter:
        """Return the adapter that is meant by its name or MODEL:NAME, loaded or not. Raises CallError NOT_FOUND."""
        if (wanted := self._meant(name, model_names)) is not None:
            return wanted
        known = ", ".join((*model_names, *sorted(self._wanted)[:20]))
        raise CallError(grpc.StatusCode.NOT_FOUND, f"model is {name!r}; this worker knows: {known}")

    def choose(self, name: str, model_names: Sequence[str]) -> ChosenModel:
        """Return what a request means by a name, also by MODEL:NAME.

        Raises CallError NOT_FOUND for one that nobody has, UNAVAILABLE for an adapter that is not there.
        """
        if not name or name in model_names:
            return BASE
        wanted = self.require(name, model_names)
        if wanted.loaded is None:
            reason, message = wanted.failure or ("Pending", "it is not loaded yet")
            raise CallError(
                grpc.StatusCode.UNAVAILABLE, f"the adapter {wanted.name}: {message} ({reason})", RETRY_PENDING_S
            )
        return ChosenModel(wanted.name, wanted.loaded.digest, wanted.loaded.num_virtual_tokens)

    def _meant(self, name: str, model_names: Sequence[str]) -> WantedAdapter | None:
        return self._wanted.get(name) or self._wanted.get(_behind(name, model_names))

    def _put(self, wanted: WantedAdapter) -> None:
        if self._wanted.get(wanted.name) != wanted:
            self._wanted[wanted.name] = wanted
            self._changed()

    def _changed(self) -> None:
        self.version += 1
        self._on_change()


def _check_name(name: str, model_names: Sequence[str]) -> None:
    if not NAME.fullmatch(name):
        raise _invalid(f"name is {name[:300]!r}; allowed: 1 to 253 letters, digits and . _ : / -")
    if name in model_names:
        raise _invalid(f"name is {name!r}, which is the base model's")


def _next(now: WantedAdapter, new: WantedAdapter) -> WantedAdapter:
    """Return a name that shall mean something new: what is loaded is kept until that is, too."""
    if now.wants_same(new):
        return replace(now, successor=None, failure=None if now.loaded else now.failure)
    if now.loaded is None:
        return new
    return now if now.successor == new else replace(now, successor=new, failure=None)


def _behind(name: str, model_names: Sequence[str]) -> str:
    """Return what stands behind a model's name and a colon; "" = nothing does."""
    return next((name[len(model) + 1 :] for model in model_names if name.startswith(f"{model}:")), "")


def _state(wanted: WantedAdapter) -> str:
    if wanted.loaded is not None:
        return wanted.loaded.digest[:12]
    return wanted.failure[0] if wanted.failure else "pending"


def _invalid(message: str) -> CallError:
    return CallError(grpc.StatusCode.INVALID_ARGUMENT, message)
