"""A run's results as lines: names and values first, then one line of figures for each metric. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_PLAIN = (
    ("duration", "duration", "s"),
    ("request_throughput", "throughput", "requests/s"),
    ("output_throughput", "output", "tokens/s"),
    ("total_token_throughput", "prompts and output", "tokens/s"),
    ("tokens_per_message", "tokens in a message", "(more than 1 where drafts are taken)"),
    ("draft_acceptance", "drafts taken", "of the tokens proposed"),
    ("request_goodput", "goodput", "requests/s"),
)
_COUNTS = ("completed", "failed", "unfinished", "not_sent")
_CLIENT = {"late": "client: late", "held_back": "client: held back", "loop_lag": "client: loop lag"}


def facts(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names and values of what is one number each."""
    counts = [(name.replace("_", " "), str(results[name])) for name in _COUNTS]
    errors = [(f"failed with {code}", str(count)) for code, count in results["errors"].items()]
    plain = [(name, f"{results[key]:.2f} {unit}") for key, name, unit in _PLAIN if key in results]
    return [*counts, *errors, *plain]


def table(
    results: Mapping[str, Any], metrics: Sequence[str], percents: Sequence[float]
) -> tuple[list[str], list[list[str]]]:
    """Return the heading, and a row for each metric and for the client's own lateness, in milliseconds."""
    columns = ["mean", "median", *(f"p{percent:g}" for percent in percents)]
    rows = [_row(f"{metric.upper()} (ms)", results, metric, columns) for metric in metrics]
    client = [_row(f"{words} (ms)", results["client"], name, columns) for name, words in _CLIENT.items()]
    return ["", *columns], rows + client


def _row(words: str, values: Mapping[str, float | None], name: str, columns: Sequence[str]) -> list[str]:
    shown = [values[f"{column}_{name}_ms"] for column in columns]
    return [words, *("-" if value is None else f"{value:.2f}" for value in shown)]
