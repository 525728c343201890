"""What dashboards are made of, and their form in Grafana's JSON model. Knows no metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

WIDTH = 24  # of Grafana's grid
HEIGHT = 7
SOURCE = {"type": "prometheus", "uid": "${datasource}"}

Unit = Literal["short", "s", "bytes", "percentunit", "reqps", "ops"]  # as Grafana calls them
Kind = Literal["timeseries", "stat"]


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph, or one number. `queries` maps a legend to a PromQL expression."""

    title: str
    unit: Unit
    queries: Mapping[str, str]
    description: str
    kind: Kind = "timeseries"


@dataclass(frozen=True, slots=True)
class Choice:
    """What a viewer can choose: the values of a label. `query` is Grafana's label_values(…)."""

    name: str
    label: str
    query: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One page: rows of panels, which share a row's width."""

    uid: str
    title: str
    description: str
    choices: Sequence[Choice]
    rows: Mapping[str, Sequence[Panel]]

    @property
    def panels(self) -> list[Panel]:
        """Return all panels, in the order of reading."""
        return [panel for row in self.rows.values() for panel in row]


def to_grafana(board: Dashboard) -> dict[str, Any]:
    """Return the dashboard in Grafana's JSON model."""
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    return {
        "uid": board.uid,
        "title": f"Dormouse / {board.title}",
        "description": board.description,
        "tags": ["dormouse", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source, *map(_variable, board.choices)]},
        "panels": _placed(board),
    }


def _variable(choice: Choice) -> dict[str, Any]:
    """Return a variable filled by a query; everything is chosen at first."""
    return {
        "name": choice.name,
        "label": choice.label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": choice.query, "refId": choice.name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _placed(board: Dashboard) -> list[dict[str, Any]]:
    """Return rows and panels with their places."""
    placed: list[dict[str, Any]] = []
    top = 0
    for title, row in board.rows.items():
        placed.append(_heading(title, number=len(placed) + 1, top=top))
        top += 1
        width = WIDTH // len(row)
        for column, panel in enumerate(row):
            where = {"x": column * width, "y": top, "w": width, "h": HEIGHT}
            placed.append(_graph(panel, number=len(placed) + 1, where=where))
        top += HEIGHT
    return placed


def _heading(title: str, *, number: int, top: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": WIDTH, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": place}


def _graph(panel: Panel, *, number: int, where: Mapping[str, int]) -> dict[str, Any]:
    """Return one panel in Grafana's JSON model."""
    targets = [
        {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": query, "legendFormat": legend}
        for index, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": where,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": _options(panel.kind),
    }


def _options(kind: Kind) -> dict[str, Any]:
    if kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}
    return {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
