"""Carries an order for load out: connects, learns the vocabulary, warms up, sends, tells. Computes nothing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dormouse_api.client import AsyncClient, ClientError, RetryPolicy
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_cli.errors import CommandFailed
from dormouse_cli.exit_codes import ExitCode
from dormouse_cli.load import figures, plan, show
from dormouse_cli.load.drive import Drive
from dormouse_cli.load.figures import Run
from dormouse_cli.reach import Door, Way, explain, tls_of
from dormouse_cli.screen import Screen
from dormouse_cli.traces import traced

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


@dataclass(frozen=True, slots=True)
class Order:
    """What to send, and what to tell of it."""

    load: plan.Load
    metrics: Sequence[str]
    percents: Sequence[float]
    limits_ms: Mapping[str, float]


def order_of(load: plan.Load, *, metrics: str, percents: str, goodput: Iterable[str]) -> Order:
    """Return the order that the options mean. Raises CommandFailed naming the option that is wrong."""
    try:
        return Order(
            load, figures.parse_metrics(metrics), figures.parse_percents(percents), figures.parse_limits(goodput)
        )
    except figures.BadFigure as error:
        raise CommandFailed(str(error), code=ExitCode.USAGE) from error


def perform(order: Order, way: Way, there: Door, *, timeout_s: float, screen: Screen) -> dict[str, Any]:
    """Send the load and return its results, also when Ctrl-C cuts it short. Raises CommandFailed."""
    try:
        with traced(os.environ, screen.remark) as tracer:
            run = asyncio.run(_perform(order.load, way, there, timeout_s, screen, tracer))
    except ClientError as error:  # of the warm-ups, or of the question for the model
        raise explain(error, there.address) from error
    except plan.BadPlan as error:
        raise CommandFailed(str(error), code=ExitCode.USAGE) from error
    told = figures.results(run, metrics=order.metrics, percents=order.percents, limits_ms=order.limits_ms)
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), **_asked(order.load, there), **told}


def tell(results: Mapping[str, Any], order: Order, screen: Screen, form: str) -> None:
    """Write the results: a table on a terminal, lines with tabs in a pipe, or the form asked for."""
    if form != "text":
        screen.structured(results, form)
        return
    heading, rows = show.table(results, order.metrics, order.percents)
    lines = show.facts(results)
    if not screen.out.is_terminal:
        for line in (*lines, heading, *rows):
            screen.say("\t".join(line))
        return
    screen.draw(_drawn([], lines))
    screen.draw(_drawn(heading, rows))


def conclude(results: Mapping[str, Any]) -> None:
    """End the command as it went. Raises CommandFailed if a request failed, Exit after Ctrl-C."""
    if results["interrupted"]:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if results["failed"]:
        words = "; ".join(f"{code}: {text}" for code, text in results["error_words"].items())
        raise CommandFailed(f"{results['failed']} of {results['num_prompts']} requests failed: {words}")


def _asked(load: plan.Load, there: Door) -> dict[str, Any]:
    return {
        "model": there.model,
        "address": there.address,
        "num_prompts": load.num_prompts,
        "request_rate": "inf" if load.rate == float("inf") else load.rate,
        "max_concurrency": load.max_concurrency,
        "random_input_len": load.input_len,
        "random_output_len": load.output_len,
        "seed": load.seed,
        "num_warmups": load.warmups,
        "ignore_eos": load.ignore_eos,
    }


async def _perform(
    load: plan.Load, way: Way, there: Door, timeout_s: float, screen: Screen, tracer: Tracer | None
) -> Run:
    tls, never = tls_of(way, there.host), RetryPolicy.never()
    async with AsyncClient(
        there.address, api_key=way.api_key, tls=tls, timeout_s=timeout_s, retry=never, tracer=tracer
    ) as client:
        known = await client.get_model(there.model)
        words = plan.Vocabulary(known.vocab_size, frozenset(known.eos_token_ids), known.max_model_len)
        requests = [_request(there.model, load, tokens) for tokens in plan.prompts(load, words)]
        for request in requests[: load.warmups]:
            await _warm_up(client, request)
        due_s = plan.arrivals(load.num_prompts, load.rate, load.seed)
        with progress(screen.remarks, load.num_prompts) as on_end:
            drive = Drive(client, requests[load.warmups :], due_s, load.max_concurrency, on_end)
            return await drive.run()


def _request(model: str, load: plan.Load, tokens: Sequence[int]) -> pb.GenerateRequest:
    sampling = pb.SamplingParams(temperature=0, max_tokens=load.output_len, ignore_eos=load.ignore_eos)
    return pb.GenerateRequest(model=model, token_ids=pb.TokenIds(ids=tokens), sampling_params=sampling)


async def _warm_up(client: AsyncClient, request: pb.GenerateRequest) -> None:
    async with aclosing(client.generate(request)) as answer:
        async for _ in answer:
            pass


@contextmanager
def progress(console: Console, total: int) -> Iterator[Callable[[object], None]]:
    """Show how far it is, on a terminal only; gives what is to be called at each request's end."""
    columns = (TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, refresh_per_second=2, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("requests", total=total)
        yield lambda _: bar.advance(task)


def _drawn(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(*heading, box=None, show_header=bool(heading))
    for row in rows:
        table.add_row(*row)
    return table
