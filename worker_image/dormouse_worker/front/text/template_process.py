"""The program that renders chat templates: a process of its own, with little memory and no time to waste.

A template comes with a model, its variables come from callers: neither is trusted. The front writes orders to standard
input and reads answers from standard output: JSON behind its length. It kills this process when an answer is late; what
is limited here is what it cannot limit: memory, and the processor's time if the front should be gone.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

from dormouse_worker.front.text.chat import ChatTemplates, TemplateRefused
from dormouse_worker.front.text.orders import (
    MAX_REFUSAL_CHARS,
    REFUSED,
    TEXT,
    answer_orders,
    encode,
    limit_memory,
    limit_time,
    read,
)


class Clock:
    """The time as the front tells it, with every order."""

    def __init__(self) -> None:
        self.now = datetime.now().astimezone()

    def __call__(self) -> datetime:
        """Return it."""
        return self.now

    def set(self, told: tuple[float, float, str]) -> None:
        """Take seconds since 1970, the zone's offset in seconds, and its name."""
        seconds, offset_s, name = told
        self.now = datetime.fromtimestamp(seconds, timezone(timedelta(seconds=offset_s), name))


def told_time(now: datetime) -> tuple[float, float, str]:
    """Return a time that knows its zone as `Clock.set` takes it."""
    return now.timestamp(), (now.utcoffset() or timedelta()).total_seconds(), now.tzname() or "UTC"


def render(templates: ChatTemplates, clock: Clock, order: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to an order."""
    clock.set(order["now"])
    try:
        return {TEXT: templates.render(**order["chat"])}
    except TemplateRefused as error:
        return {REFUSED: str(error)[:MAX_REFUSAL_CHARS]}


def main() -> None:
    """Compile what the first message brings, say so, then render until the front is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the front ends this process when it ends itself
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    setup, clock = read(source), Clock()
    if setup is None:
        return
    limit_memory(setup["memory_bytes"])
    limit_time(setup["seconds"])
    try:
        sources, special_tokens = setup["sources"], setup["special_tokens"]
        templates = ChatTemplates(
            sources, special_tokens, now=clock, max_chars=setup["max_chars"], wants_parts=setup["wants_parts"]
        )
    except Exception as error:  # noqa: BLE001  what it computes can fail in any way
        why = f"the model's chat template cannot be compiled: {type(error).__name__}: {error}"
        sink.write(encode({REFUSED: why}))
        return
    answer_orders(source, sink, partial(render, templates, clock), seconds=setup["seconds"])


if __name__ == "__main__":
    main()
