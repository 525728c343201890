"""The dashboards, without a Prometheus: places, names, and queries that ask for what there is."""

from __future__ import annotations

import re
from itertools import chain

import pytest

from tools.dashboards import DASHBOARDS, to_grafana
from tools.dashboards.model import HEIGHT, WIDTH
from tools.metric_catalogue import catalogue

SAMPLES = {name: one for one in catalogue() for name in one.sample_names}
SCRAPED = {"namespace", "pod"}  # what a scrape adds to every series
QUERIES = [
    (panel, legend, query) for board in DASHBOARDS for panel in board.panels for legend, query in panel.queries.items()
]


def labels_of(metric):
    return {label for one in catalogue() if metric in one.sample_names for label in one.labels} | SCRAPED | {"le"}


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.title)
def test_panels_have_numbers_of_their_own_and_never_overlap(board):
    panels = to_grafana(board)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert place["x"] + place["w"] <= WIDTH
        assert place["h"] in {1, HEIGHT}
        taken |= cells


def test_dashboards_have_names_of_their_own():
    for names in ([board.uid for board in DASHBOARDS], [board.title for board in DASHBOARDS]):
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.title)
def test_every_panel_is_described_and_no_data_source_is_written_in(board):
    described = [panel for panel in to_grafana(board)["panels"] if panel["type"] != "row"]
    assert [panel["title"] for panel in described if not panel["description"].endswith(".")] == []
    assert {panel["datasource"]["uid"] for panel in described} == {"${datasource}"}


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.title)
def test_every_variable_that_a_query_reads_can_be_chosen(board):
    text = "".join(chain.from_iterable(panel.queries.values() for panel in board.panels))
    read = set(re.findall(r"\$(\w+)", text)) - {"__rate_interval"}
    assert read <= {choice.name for choice in board.choices}


@pytest.mark.parametrize("query", sorted({query for _, _, query in QUERIES}))
def test_a_query_asks_for_metrics_and_labels_that_there_are(query):
    asked = re.findall(r"\b((?:dormouse_|vllm:)[a-z0-9_]+)(\{[^}]*\})?", query)
    assert asked
    for metric, selector in asked:
        assert metric in SAMPLES
        assert set(re.findall(r"(\w+)=~?\"", selector)) <= labels_of(metric)
    for labels in re.findall(r"by \(([^)]*)\)", query):
        assert set(re.split(r",\s*", labels)) <= labels_of(asked[0][0])


@pytest.mark.parametrize(("legend", "query"), [(legend, query) for _, legend, query in QUERIES])
def test_a_query_is_one_that_prometheus_can_answer_sensibly(legend, query):
    for metric in re.findall(r"rate\(([a-z0-9_:]+)", query):
        assert SAMPLES[metric].kind in {"counter", "histogram"}, "rate of something that is no counter"
    if "histogram_quantile" in query:
        assert re.search(r"sum by \(le\b", query), "the buckets' bound must survive the sum"
    grouped = re.search(r"by \(([^)]*)\)", query)
    for label in re.findall(r"{{(\w+)}}", legend):
        assert grouped is None or label in re.split(r",\s*", grouped[1]), "the legend shows what the sum dropped"


@pytest.mark.parametrize(("panel", "query"), [(panel, query) for panel, _, query in QUERIES])
def test_a_panel_shows_the_unit_of_its_metrics(panel, query):
    ends = {"s": "seconds", "bytes": "bytes"}
    metrics = {SAMPLES[name] for name in re.findall(r"\b(?:dormouse_|vllm:)[a-z0-9_]+", query)}
    is_rate = "rate(" in query and "histogram_quantile" not in query
    for unit, word in ends.items():
        if panel.unit == unit:
            assert not is_rate
            assert {one.unit for one in metrics} == {word}
    if not is_rate:
        assert panel.unit not in {"reqps", "ops"}
