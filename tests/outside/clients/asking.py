"""What every client's program is asked for, and how it tells what it saw.

A program runs in the clients' own environment, as a user would write it: it knows nothing of this project but address,
key and a model's name. `asking.mjs` says the same to programs of Node.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

QUESTION = "What does join do?"
MODEL = "tiny"
NUM_TOKENS = 8
MANY_TOKENS = 1500  # seconds of work: who goes away in the middle of it can be told from who stayed


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client shows of an answer; None for what it does not show."""

    text: str
    finish: str | None = None
    usage: Sequence[int] | None = None  # tokens of prompt and answer
    logprobs: Sequence[float] | None = None  # of each token


class Client(Protocol):
    """One client library with address, key and model. Sampling is named as in OpenAI's API."""

    def answer(self, **sampling: Any) -> Answer:
        """Return an answer in one piece."""

    def stream(self, **sampling: Any) -> Answer:
        """Return a streamed answer, its pieces put together."""

    def models(self) -> list[str] | None:
        """Return the models' names; None if the library has no such call."""

    def leave(self, **sampling: Any) -> None:
        """Begin a stream, read its first words and go away as the library's users do."""


Make = Callable[[str, str, str], Client]  # of address, key, model


def tell(make: Make) -> None:
    """Ask everything, print what came; then go away in mid-stream, say so, and live on until standard input ends."""
    address, key = sys.argv[1:3]
    client = make(address, key, MODEL)
    whole = client.answer(max_tokens=NUM_TOKENS)
    stop = whole.text.split()[-1]
    refused = {
        "unknown model": make(address, key, "unknown").answer,
        "unknown model, streamed": make(address, key, "unknown").stream,
        "wrong key": make(address, "wrong", MODEL).answer,
        "wrong parameter": lambda: client.answer(top_p=7),
    }
    told = {
        "whole": asdict(whole),
        "streamed": asdict(client.stream(max_tokens=NUM_TOKENS)),
        "stop": stop,
        "stopped": asdict(client.answer(max_tokens=NUM_TOKENS, stop=[stop])),
        "models": client.models(),
        "refused": {what: refusal(ask) for what, ask in refused.items()},
    }
    print(json.dumps(told), flush=True)
    client.leave(max_tokens=MANY_TOKENS)
    print("left", flush=True)
    sys.stdin.read()


def refusal(ask: Callable[[], Answer]) -> list[str]:
    """Return the kinds of the error that a call ends with, its own first, and at the end its words."""
    try:
        got = ask()
    except Exception as error:  # noqa: BLE001  # whatever the library makes of it
        kinds = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, Exception)]
        return [*kinds[:-1], str(error)]
    return [f"no error, but {got}"]
