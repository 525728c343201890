"""The adapters by the names under which requests ask for them: what is wanted, and what the engine has of it. Pure.

A name means one digest at a time. What is wanted outlives every engine process; what is loaded does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace

import grpc

from dormouse_api.status import CallError
from dormouse_worker.common.adapters import AdapterInfo

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,252}")
MAX_NAMES = 4096
RETRY_PENDING_S = 1.0


@dataclass(frozen=True, slots=True)
class WantedAdapter:
    """One name, and what became of it."""

    name: str
    path: str  # absolute
    digest: str = ""  # what it has to be; "" = anything
    is_pinned: bool = False
    loaded: AdapterInfo | None = None  # None = not yet, or not any more
    failure: tuple[str, str] | None = None  # reason and message of the last attempt


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """What a request's model name means."""

    adapter: str = ""  # the name of an adapter; "" = the base model
    digest: str = ""


BASE = ChosenModel()


class AdapterBoard:
    """Owns the names."""

    def __init__(self) -> None:
        self._wanted: dict[str, WantedAdapter] = {}

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
        if not NAME.fullmatch(wanted.name):
            raise _invalid(f"name is {wanted.name!r}; allowed: 1 to 253 letters, digits and . _ : / -")
        if wanted.name in model_names:
            raise _invalid(f"name is {wanted.name!r}, which is the base model's")
        if wanted.name not in self._wanted and len(self._wanted) >= MAX_NAMES:
            raise CallError(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_NAMES} adapters have names already; remove one first"
            )

    def want(self, wanted: WantedAdapter) -> None:
        """Note a name, or what it shall mean from now on."""
        self._wanted[wanted.name] = wanted

    def forget(self, name: str) -> WantedAdapter | None:
        """Forget a name; return what it stood for."""
        return self._wanted.pop(name, None)

    def note_loaded(self, name: str, info: AdapterInfo) -> None:
        """The engine has it. The name means this digest until AddLora says otherwise, whatever becomes of the files."""
        if (wanted := self._wanted.get(name)) is not None:
            self._wanted[name] = replace(wanted, digest=info.digest, loaded=info, failure=None)

    def note_failed(self, name: str, reason: str, message: str) -> None:
        """The engine cannot have it."""
        if (wanted := self._wanted.get(name)) is not None:
            self._wanted[name] = replace(wanted, loaded=None, failure=(reason, message))

    def note_engine_lost(self) -> None:
        """Nothing is loaded any more."""
        self._wanted = {name: replace(each, loaded=None) for name, each in self._wanted.items()}

    def is_used(self, digest: str) -> bool:
        """Return whether some name means it."""
        return any(each.loaded is not None and each.loaded.digest == digest for each in self)

    def names_of(self, digests: Set[str]) -> set[str]:
        """Return the names that mean these; a digest that has none any more is told by its beginning."""
        names = {each.loaded.digest: each.name for each in self if each.loaded is not None}
        return {names.get(digest, digest[:12]) for digest in digests}

    def choose(self, name: str, model_names: Sequence[str]) -> ChosenModel:
        """Return what a request means by a name, also by MODEL:NAME.

        Raises CallError NOT_FOUND for one that nobody has, UNAVAILABLE for an adapter that is not there.
        """
        if not name or name in model_names:
            return BASE
        wanted = self._wanted.get(name) or self._wanted.get(_behind(name, model_names))
        if wanted is None:
            known = ", ".join((*model_names, *sorted(self._wanted)[:20]))
            raise CallError(grpc.StatusCode.NOT_FOUND, f"model is {name!r}; this worker knows: {known}")
        if wanted.loaded is None:
            reason, message = wanted.failure or ("Pending", "it is not loaded yet")
            raise CallError(
                grpc.StatusCode.UNAVAILABLE, f"the adapter {wanted.name}: {message} ({reason})", RETRY_PENDING_S
            )
        return ChosenModel(wanted.name, wanted.loaded.digest)


def _behind(name: str, model_names: Sequence[str]) -> str:
    """Return what stands behind a model's name and a colon; "" = nothing does."""
    return next((name[len(model) + 1 :] for model in model_names if name.startswith(f"{model}:")), "")


def _state(wanted: WantedAdapter) -> str:
    if wanted.loaded is not None:
        return wanted.loaded.digest[:12]
    return wanted.failure[0] if wanted.failure else "pending"


def _invalid(message: str) -> CallError:
    return CallError(grpc.StatusCode.INVALID_ARGUMENT, message)
