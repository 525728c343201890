"""Asks a Prometheus for instant vectors. The only place that knows its HTTP API."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

from dormouse_cli.errors import CommandFailed

_TIMEOUT_S = 60.0


class Sample(NamedTuple):
    """One series of an answer."""

    labels: Mapping[str, str]
    value: float


def query(url: str, expression: str) -> list[Sample]:
    """Return the finite samples of an expression now. Raises CommandFailed."""
    if not url.startswith(("http://", "https://")):
        raise CommandFailed(f"--prometheus is {url!r}; allowed are addresses with http:// or https://")
    asked = f"{url.rstrip('/')}/api/v1/query?query={quote(expression)}"
    try:
        with urlopen(asked, timeout=_TIMEOUT_S) as answer:  # noqa: S310  # nosec B310  # of the two schemes
            content: Any = json.load(answer)
    except (URLError, OSError, ValueError) as error:
        raise CommandFailed(f"Prometheus at {url} does not answer: {error}") from error
    found = content.get("data", {}).get("result") if isinstance(content, dict) else None
    if not isinstance(found, list):
        raise CommandFailed(f"{url} does not answer as a Prometheus does")
    samples = [Sample(each["metric"], float(each["value"][1])) for each in found]
    return [sample for sample in samples if math.isfinite(sample.value)]
