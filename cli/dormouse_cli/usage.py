"""`usage`: what each API key used of each model, as CSV; from the gateways, or over a time from Prometheus."""

from __future__ import annotations

import asyncio
import csv
import io
import re
from collections.abc import Iterable, Mapping

from dormouse_api.names import METRICS_PORT
from dormouse_cli.errors import CommandFailed
from dormouse_cli.prometheus import Sample, query
from dormouse_cli.session import Session
from dormouse_kube.api import PODS

REQUESTS, TOKENS = "dormouse_usage_requests_total", "dormouse_usage_tokens_total"
GATEWAYS = "app.kubernetes.io/name=dormouse,app.kubernetes.io/component=gateway"
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_SAMPLE = re.compile(rf"^(?P<name>{REQUESTS}|{TOKENS})\{{(?P<labels>.*)\}} (?P<value>\S+)", re.MULTILINE)
HEAD = ("key", "namespace", "model", "requests", "prompt_tokens", "cached_tokens", "completion_tokens")


async def show(session: Session, *, namespace: str | None, prometheus: str | None, since: str) -> None:
    """Write the table of one namespace's models, or of all (None). Raises CommandFailed, KubeError."""
    if prometheus:
        samples = _from_prometheus(prometheus, since)
    else:
        samples = await _from_gateways(session)
        session.screen.remark("counted since each gateway that runs now has started; --prometheus knows more")
    session.screen.out.file.write(table(each for each in samples if _is_in(each, namespace)))


def table(samples: Iterable[tuple[str, Sample]]) -> str:
    """Return CSV, a line for each key and model. Pure."""
    rows: dict[tuple[str, str, str], dict[str, float]] = {}
    for name, (labels, value) in samples:
        row = rows.setdefault((labels["key"], labels["namespace"], labels["model"]), {})
        column = "requests" if name == REQUESTS else f"{labels['part']}_tokens"
        row[column] = row.get(column, 0.0) + value
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEAD)
    writer.writerows((*key, *(round(row.get(column, 0.0)) for column in HEAD[3:])) for key, row in sorted(rows.items()))
    return text.getvalue()


def read(scraped: str) -> list[tuple[str, Sample]]:
    """Return what a gateway's /metrics says of usage. Pure."""
    return [
        (found["name"], Sample(dict(_LABEL.findall(found["labels"])), float(found["value"])))
        for found in _SAMPLE.finditer(scraped)
    ]


async def _from_gateways(session: Session) -> list[tuple[str, Sample]]:
    pods = (await session.cluster.list(PODS, None, label_selector=GATEWAYS)).items
    if not pods:
        raise CommandFailed("no gateway runs in this cluster, or you may not list its pods")
    places = [(pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in pods]
    scraped = await asyncio.gather(*(session.cluster.metrics(*place, METRICS_PORT) for place in places))
    return [sample for text in scraped for sample in read(text)]


def _from_prometheus(url: str, since: str) -> list[tuple[str, Sample]]:
    labels: Mapping[str, str] = {REQUESTS: "key, namespace, model", TOKENS: "key, namespace, model, part"}
    return [
        (name, sample)
        for name, by in labels.items()
        for sample in query(url, f"sum by ({by}) (increase({name}[{since}]))")
    ]


def _is_in(each: tuple[str, Sample], namespace: str | None) -> bool:
    return namespace is None or each[1].labels["namespace"] == namespace
