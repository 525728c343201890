"""Carries a batch out: what is left of the requests, so many at a time, each answer written when it comes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from dormouse_cli.batch import files
from dormouse_cli.batch.lines import Item, NoReply, Reply, answer_line, body_of
from dormouse_cli.batch.sender import connected
from dormouse_cli.errors import CommandFailed
from dormouse_cli.exit_codes import ExitCode
from dormouse_cli.load.order import progress
from dormouse_cli.reach import Door, Way
from dormouse_cli.screen import Screen


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What was ordered."""

    source: Path
    output: Path
    model: str | None  # asked instead of those that the requests name
    priority: int
    max_concurrency: int
    timeout_s: float


class Asks(Protocol):
    """Who is asked: `Sender`."""

    async def ask(self, url: str, body: dict[str, object]) -> Reply | NoReply:
        """Return what came of a request. Raises CommandFailed if no other has a chance either."""
        ...


@dataclass(slots=True)
class Run:
    """One run over the requests that are left. Owns how many were answered."""

    batch: Batch
    asks: Asks
    write: Callable[[str], None]
    on_end: Callable[[object], None] = lambda _: None
    num_done: int = 0
    num_failed: int = 0
    draw_id: Callable[[], str] = field(default=lambda: uuid.uuid4().hex)

    async def work_off(self, items: Iterator[Item]) -> None:
        """Send all requests, `max_concurrency` at a time. What ends one this way ends all."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self.batch.max_concurrency):
                group.create_task(self._work_off(items))

    async def _work_off(self, items: Iterator[Item]) -> None:
        for item in items:
            body = body_of(item, model=self.batch.model, priority=self.batch.priority)
            reply = await self.asks.ask(item.url, body)
            self.write(answer_line(item, reply, self.draw_id()))
            self.num_done += reply.is_done
            self.num_failed += not reply.is_done
            self.on_end(item)


def prepare(source: Path, output: Path | None) -> tuple[files.Checked, Path]:
    """Check the requests; return them with where answers go. Raises CommandFailed."""
    checked = files.check(source)
    answers = output or source.with_name(f"{source.stem}.answers.jsonl")
    if files.are_one(source, answers):
        raise CommandFailed(f"--output {answers} is the file of the requests", code=ExitCode.USAGE)
    return checked, answers


def perform(batch: Batch, checked: files.Checked, way: Way, there: Door, screen: Screen) -> None:
    """Answer what is not answered yet, and say how it went. Raises CommandFailed if a request failed."""
    done = files.resume(batch.output, checked.custom_ids)
    num_left = len(checked.custom_ids) - len(done)
    if done:
        screen.remark(f"{batch.output}: {len(done)} of {len(checked.custom_ids)} are answered; {num_left} are asked")
    if num_left:
        asyncio.run(_perform(batch, done, way, there, screen, num_left))
    screen.remark(f"all {len(checked.custom_ids)} requests are answered: {batch.output}")


async def _perform(batch: Batch, done: set[str], way: Way, there: Door, screen: Screen, num_left: int) -> None:
    with files.appending(batch.output) as write, progress(screen.remarks, num_left) as on_end:
        async with connected(way, there, timeout_s=batch.timeout_s, max_concurrency=batch.max_concurrency) as sender:
            await sender.greet()
            run = Run(batch, sender, write, on_end)
            try:
                await run.work_off(files.requests(batch.source, done))
            except* CommandFailed as errors:
                raise _stopped(errors.exceptions[0], batch, num_left - run.num_done) from None
            if run.num_failed:
                words = f"{run.num_failed} of {num_left} requests failed; {batch.output} says why"
                raise CommandFailed(f"{words}. The same command asks them again")


def _stopped(error: BaseException, batch: Batch, num_left: int) -> CommandFailed:
    return CommandFailed(f"{error}; {num_left} requests are not answered. The same command goes on: {batch.output}")
