"""A real Prometheus that scrapes our processes every second and evaluates our rules."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from tests.faults.programs import Program, clean_environment
from tests.ports import free_port
from tools.charts import CHART_FILES
from tools.dashboards.picture import Line

RATE_INTERVAL = "15s"


@dataclass(frozen=True, slots=True)
class Target:
    """A process, and the labels that a scrape of its pod would add."""

    address: str
    namespace: str
    pod: str


class Prometheus:
    """Its process and its API."""

    def __init__(self, folder: Path, binary: Path) -> None:
        """Take the folder to make, and the program."""
        folder.mkdir()
        self._folder = folder
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self._targets = folder / "targets.json"
        self.scrape([])
        files = {"files": [str(self._targets)], "refresh_interval": "1s"}
        job = {"job_name": "dormouse", "honor_labels": True, "file_sd_configs": [files]}
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(CHART_FILES / "alerts" / "dormouse.yaml")],
            "scrape_configs": [job],
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config), "utf-8")
        flags = {
            "config.file": folder / "prometheus.yaml",
            "storage.tsdb.path": folder / "data",
            "web.listen-address": f"127.0.0.1:{port}",
            "log.level": "warn",
        }
        arguments = [f"--{name}={value}" for name, value in flags.items()]
        self.program = Program([binary, *arguments], log=folder / "prometheus.log", env=clean_environment())

    @classmethod
    @asynccontextmanager
    async def running(cls, folder: Path, binary: Path) -> AsyncIterator[Prometheus]:
        """Run it while the context lasts."""
        prometheus = cls(folder, binary)
        try:
            yield prometheus
        finally:
            prometheus.program.end()

    def scrape(self, targets: list[Target]) -> None:
        """Scrape these from now on."""
        groups = [{"targets": [t.address], "labels": {"namespace": t.namespace, "pod": t.pod}} for t in targets]
        building = self._targets.with_suffix(".partial")
        building.write_text(json.dumps(groups), "utf-8")
        building.rename(self._targets)

    async def ask(self, path: str, **parameters: Any) -> Any:
        """Return the data of an answer of its API; fail with its own words."""
        url = f"{self.url}/api/v1/{path}"
        async with aiohttp.ClientSession() as session, session.get(url, params=parameters) as answer:
            told = await answer.json()
        assert told["status"] == "success", f"{parameters}: {told}"
        return told["data"]

    async def number(self, query: str) -> float:
        """Return the sum of a query's present values, 0 while it cannot be asked or there are none."""
        try:
            result = (await self.ask("query", query=query))["result"]
        except aiohttp.ClientError:
            return 0.0
        return sum(float(one["value"][1]) for one in result)

    async def lines(self, legend: str, query: str, *, start_s: float, end_s: float) -> list[Line]:
        """Return what a panel would show between two times: every variable stands for everything."""
        for variable in ("$namespace", "$deployment", "$release"):
            query = query.replace(variable, ".*")
        query = query.replace("$__rate_interval", RATE_INTERVAL)
        result = (await self.ask("query_range", query=query, start=start_s, end=end_s, step=1))["result"]
        return [
            Line(_named(legend, one["metric"]), [(float(when), float(value)) for when, value in one["values"]])
            for one in result
        ]


def _named(legend: str, labels: Mapping[str, str]) -> str:
    """Return the legend with the labels' values, as Grafana fills it."""
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), legend)
