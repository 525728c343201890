"""Chats become text in processes of their own: a template may take any time and memory, so it may be killed.

At most two processes; a caller has one of them at most, until its limit, whoever waits for the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from dormouse_api.limits import MAX_MESSAGE_BYTES
from dormouse_worker.front.text.bounded_process import Job
from dormouse_worker.front.text.chat import TemplateRefused, choose
from dormouse_worker.front.text.process_pool import ProcessPool
from dormouse_worker.front.text.template_process import told_time

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """What a template may take."""

    seconds: float = 5.0  # of the clock, for one chat; and to compile all templates
    start_s: float = 30.0  # until the process answers at all: it is Python that starts, on a machine that may be busy
    memory_bytes: int = 256 << 20  # beyond what the process begins with
    max_chars: int = 4 * MAX_MESSAGE_BYTES  # of the rendered text


class Renderer:
    """Owns the processes that render one model's chats."""

    def __init__(
        self,
        sources: Mapping[str, str],
        special_tokens: Mapping[str, str],
        *,
        now: Callable[[], datetime],
        limits: RenderLimits | None = None,
        wants_parts: bool = False,
    ) -> None:
        """Start nothing yet. `wants_parts`: text is given to the template as a list of parts, as images are."""
        limits = limits or RenderLimits()
        self._names = tuple(sources)
        self._now = now
        own = {"sources": dict(sources), "special_tokens": dict(special_tokens), "wants_parts": wants_parts}
        bounds = {name: getattr(limits, name) for name in ("seconds", "memory_bytes", "max_chars")}
        job = Job(
            program="dormouse_worker.front.text.template_process",
            subject="the model's chat template",
            starting="compiling it",
            working="rendering this chat",
            refusal=TemplateRefused,
            seconds=limits.seconds,
            start_s=limits.start_s,
        )
        self._pool = ProcessPool(job, own | bounds)

    def __repr__(self) -> str:
        return f"Renderer({', '.join(self._names) or 'none'}; {self._pool!r})"

    def __bool__(self) -> bool:
        """Return whether the model has any template."""
        return bool(self._names)

    async def warm(self) -> None:
        """Start a process before it is needed. Templates that cannot be compiled say so when they are needed."""
        if self._names:
            await self._pool.warm()

    def rest(self) -> None:
        """End the processes that do nothing now."""
        self._pool.rest()

    async def render(self, chat: Mapping[str, Any], caller: str, then: Callable[[str], T]) -> T:
        """Return what `then` makes of the rendered text, in the thread that waited for it. Raises TemplateRefused.

        `chat` are the arguments of `ChatTemplates.render`.
        """
        choose(self._names, with_tools=chat["tools"] is not None)
        order = {"chat": chat, "now": told_time(self._now())}
        return await self._pool.run(caller, lambda process: then(process.ask(order)))

    def close(self) -> None:
        """End all processes; chats that are being rendered, or wait for it, are refused."""
        self._pool.close()
