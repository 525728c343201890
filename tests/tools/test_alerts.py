"""Every alert fires when it should and clears afterwards, as Prometheus' own promtool says; and each has its page."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field

import pytest
import yaml

from localkube.packages import PROMETHEUS, ensure_package
from localkube.progress import Progress
from localkube.spec import Paths
from tools.alerts import ALERTS, RUNBOOKS
from tools.bootstrap import ROOT, cache_root
from tools.charts import CHART_FILES

RULES = CHART_FILES / "alerts" / "dormouse.yaml"
PAGES = ROOT / "docs" / "runbooks"


@dataclass(frozen=True)
class Story:
    """Series, one sample a minute, and in which minutes the alert is quiet or fires."""

    alert: str
    series: dict[str, str]
    quiet: list[int]
    fires: list[int]
    labels: dict[str, str] = field(default_factory=dict)  # what the firing alert carries, beside its own


STORIES = [
    Story(
        "DormouseNotReady",
        {'dormouse_deployment_ready{namespace="a",deployment="m"}': "1x4 0x25 1x20"},
        quiet=[4, 15, 32],
        fires=[22, 29],
        labels={"namespace": "a", "deployment": "m"},
    ),
    Story(
        "DormouseWakeSlow",
        {
            'dormouse_actuation_seconds_bucket{path="level2",le="20.0"}': "0x120",
            'dormouse_actuation_seconds_bucket{path="level2",le="60.0"}': "0x4 1x115",
            'dormouse_actuation_seconds_bucket{path="level2",le="+Inf"}': "0x4 1x115",
        },
        quiet=[3, 50],
        fires=[10, 30],
        labels={"path": "level2"},
    ),
    Story(
        "DormouseWakeSlow",
        {
            'dormouse_actuation_seconds_bucket{path="cold",le="20.0"}': "0x60",
            'dormouse_actuation_seconds_bucket{path="cold",le="+Inf"}': "0+1x60",
        },
        quiet=[10, 50],  # a first start pulls images: another matter
        fires=[],
    ),
    Story(
        "DormouseHeldTooLong",
        {
            'dormouse_hold_seconds_bucket{model="a/m",le="60.0"}': "0x60",
            'dormouse_hold_seconds_bucket{model="a/m",le="120.0"}': "0x4 2x55",
            'dormouse_hold_seconds_bucket{model="a/m",le="+Inf"}': "0x4 2x55",
        },
        quiet=[3, 20],
        fires=[6, 10],
        labels={"model": "a/m"},
    ),
    Story(
        "DormouseQueueSaturated",
        {
            'vllm:num_requests_waiting{namespace="a",pod="p",model_name="m"}': "0x4 20x20 1x20",
            'vllm:num_requests_running{namespace="a",pod="p",model_name="m"}': "8x60",
        },
        quiet=[4, 12, 28],
        fires=[16, 25],
        labels={"namespace": "a", "model_name": "m"},
    ),
    Story(
        "DormouseQueueSaturated",
        {'dormouse_rejected_total{namespace="s",pod="gw",reason="full"}': "0x4 0+3x20 60x30"},
        quiet=[4, 10, 40],
        fires=[18, 24],
        labels={"namespace": "s"},
    ),
    Story(
        "DormouseKVNearlyFull",
        {'vllm:kv_cache_usage_perc{namespace="a",pod="p",model_name="m"}': "0.5x4 0.97x30 0.3x30"},
        quiet=[4, 10, 45],
        fires=[22, 34],
        labels={"pod": "p"},
    ),
    Story(
        "DormouseEngineStalled",
        {
            'dormouse_engine_silence_seconds{namespace="a",pod="p",model_name="m"}': "0.1x4 30 90 0.1x20",
            'vllm:num_requests_running{namespace="a",pod="p",model_name="m"}': "3x30",
        },
        quiet=[4, 8],
        fires=[5, 6],
        labels={"pod": "p"},
    ),
    Story(
        "DormouseEngineStalled",
        {
            'dormouse_engine_silence_seconds{namespace="a",pod="p",model_name="m"}': "0+60x10",
            'vllm:num_requests_running{namespace="a",pod="p",model_name="m"}': "0x30",
        },
        quiet=[5, 9],  # it loads its weights, which takes what it takes
        fires=[],
    ),
    Story(
        "DormouseCrashLoop",
        {'dormouse_engine_restarts_total{namespace="a",pod="p",model_name="m"}': "0x4 1 2 3 4 4x30"},
        quiet=[4, 30],
        fires=[8, 15],
        labels={"pod": "p"},
    ),
    Story(
        "DormouseCrashLoop",
        {'dormouse_process_start_time_seconds{namespace="s",pod="op"}': "100x4 200 300 400 400x30"},
        quiet=[4, 30],
        fires=[8, 15],
        labels={"pod": "op"},
    ),
    Story(
        "DormouseBlockMismatch",
        {
            'dormouse_kv_blocks_allocated{namespace="a",pod="p",model_name="m"}': "2000x4 1800x20 2000x20",
            'dormouse_kv_blocks_allocated{namespace="a",pod="q",model_name="m"}': "0x60",  # not allocated yet
            'dormouse_kv_blocks{namespace="a",deployment="m",pod="p",rank="0"}': "2100x60",
            'dormouse_kv_blocks{namespace="a",deployment="m",pod="q",rank="0"}': "2000x60",
            'dormouse_kv_blocks_agreed{namespace="a",deployment="m"}': "2000x60",
        },
        quiet=[4, 12, 30],
        fires=[16, 24],
        labels={"namespace": "a", "pod": "p", "deployment": "m"},
    ),
    Story(
        "DormouseLeaderMissing",
        {
            'dormouse_operator_leader{namespace="s",pod="op-1"}': "1x4 0x10 0x20",
            'dormouse_operator_leader{namespace="s",pod="op-2"}': "0x4 0x10 1x20",
        },
        quiet=[4, 6, 20],
        fires=[8, 14],
        labels={"namespace": "s"},
    ),
    Story(
        "DormouseLeaderMissing",
        {'dormouse_operator_leader{namespace="s",pod="op-1"}': "_x9 1x30"},
        quiet=[1, 12],
        fires=[4, 8],
    ),
    Story(
        "DormouseWatchStale",
        {'dormouse_watch_age_seconds{namespace="s",pod="op",resource="pods"}': "10x4 0+60x8 5x20"},
        quiet=[4, 8, 16],
        fires=[11, 13],
        labels={"resource": "pods"},
    ),
    Story(
        "DormouseCertificateExpiring",
        {'dormouse_certificate_expiry_seconds{namespace="a",pod="p"}': "3600-60x60 3600-60x30"},
        quiet=[30, 44, 70],  # at 40 it should be renewed, at 45 a quarter is left
        fires=[53, 59],
        labels={"pod": "p"},
    ),
    Story(
        "DormouseCertificateExpiring",
        {'dormouse_certificate_expiry_seconds{pod="op",holder="authority"}': "700000x9 600000x29 9000000x30"},
        quiet=[5, 12, 50],
        fires=[18, 35],
        labels={"holder": "authority"},
    ),
    Story(
        "DormouseCertificateExpiring",
        {'dormouse_certificate_expiry_seconds{namespace="a",pod="p"}': "600-60x5 900-60x10 900-60x10 900-60x10"},
        quiet=[4, 12, 20, 30],  # the shortest lifetime that there may be, renewed in time
        fires=[],
    ),
    Story(
        "DormousePoolStarving",
        {'dormouse_pool_starving_members{namespace="a",pool="shared"}': "0x4 2x20 0x20"},
        quiet=[4, 8, 26],
        fires=[11, 24],
        labels={"namespace": "a", "pool": "shared"},
    ),
    Story(
        "DormousePoolFouled",
        {
            'dormouse_pool_slots{namespace="a",pool="shared",phase="Fouled"}': "0x4 1x20 0x20",
            'dormouse_pool_slots{namespace="a",pool="shared",phase="Held"}': "3x4 2x20 3x20",
        },
        quiet=[4, 8, 26],
        fires=[11, 24],
        labels={"namespace": "a", "pool": "shared"},
    ),
    Story(
        "DormousePoolThrashing",
        {
            'dormouse_pool_slots{namespace="a",pool="shared",phase="Yielding"}': "0x9 1x60 0x60",
            'dormouse_pool_slots{namespace="a",pool="shared",phase="Held"}': "2x9 1x60 2x60",
        },
        quiet=[9, 20, 90],
        fires=[35, 69],
        labels={"namespace": "a", "pool": "shared"},
    ),
    Story(
        "DormousePoolThrashing",
        {
            'dormouse_pool_slots{namespace="a",pool="shared",phase="Granting"}': "0x9 1x5 0x100",
            'dormouse_pool_slots{namespace="a",pool="shared",phase="Held"}': "1x9 0x5 1x100",
        },
        quiet=[20, 30, 60],  # one engine that starts for five minutes
        fires=[],
    ),
    Story(
        "DormouseErrorBudgetBurnFast",
        {
            'dormouse_gateway_requests_total{model="a/m",code="OK",method="Generate"}': "0+100x300",
            'dormouse_gateway_requests_total{model="a/m",code="INTERNAL",method="Generate"}': "0x10 0+5x60 300x300",
        },
        quiet=[9, 90],  # five minutes after the last failure it is over, though the hour is still bad
        fires=[60, 70],
    ),
    Story(
        "DormouseErrorBudgetBurnSlow",
        {
            'dormouse_gateway_requests_total{model="a/m",code="OK",method="Generate"}': "0+100x900",
            'dormouse_gateway_requests_total{model="a/m",code="UNAVAILABLE",method="Generate"}': "0x10 0+1x400 400x400",
            'dormouse_gateway_requests_total{model="a/m",code="INVALID_ARGUMENT",method="Generate"}': "0+50x900",
        },
        quiet=[9, 450],
        fires=[380, 400],
    ),
    Story(
        "DormouseErrorBudgetBurnFast",
        {
            'dormouse_gateway_requests_total{model="a/m",code="OK",method="Generate"}': "0+100x100",
            'dormouse_gateway_requests_total{model="a/m",code="INVALID_ARGUMENT",method="Generate"}': "0+50x100",
        },
        quiet=[60, 90],  # clients' own mistakes use up nothing
        fires=[],
    ),
]


@pytest.fixture(scope="session")
def promtool():
    folder = ensure_package(Paths(cache_root().resolve() / "localkube"), PROMETHEUS, Progress())

    def call(*arguments):
        done = subprocess.run([folder / "promtool", *arguments], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return call


def question(story, minute, *, fires):
    """Return what promtool asks in that minute: how many firing alerts with these labels there are."""
    labels = {"alertname": story.alert, "alertstate": "firing", **story.labels}
    matchers = ",".join(f'{name}="{value}"' for name, value in labels.items())
    samples = [{"labels": "{}", "value": 1}] if fires else []
    return {"expr": f"count(ALERTS{{{matchers}}})", "eval_time": f"{minute}m", "exp_samples": samples}


def as_test(story):
    series = [{"series": name, "values": values} for name, values in story.series.items()]
    asked = [question(story, minute, fires=False) for minute in story.quiet]
    asked += [question(story, minute, fires=True) for minute in story.fires]
    return {"interval": "1m", "input_series": series, "promql_expr_test": asked}


def test_prometheus_accepts_the_rules(promtool):
    code, told = promtool("check", "rules", RULES)
    assert code == 0, told


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.alert)
def test_an_alert_fires_and_clears_when_it_should(promtool, tmp_path, story):
    file = tmp_path / "test.yaml"
    content = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [as_test(story)]}
    file.write_text(yaml.safe_dump(content), "utf-8")
    code, told = promtool("test", "rules", file)
    assert code == 0, told


def test_every_alert_is_seen_to_fire_and_to_clear():
    told = {story.alert for story in STORIES if story.fires and any(m > max(story.fires) for m in story.quiet)}
    assert told == {alert.name for alert in ALERTS}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_has_a_page_that_says_what_it_means_and_what_to_do(alert):
    text = (PAGES / f"{alert.runbook}.md").read_text("utf-8")
    assert f"`{alert.name}`" in text
    for heading in ("## What it means", "## Look", "## Do"):
        assert heading in text


def test_no_page_is_without_its_alert():
    pages = {path.stem for path in PAGES.glob("*.md")} - {"index"}
    assert pages == {alert.runbook for alert in ALERTS}


def test_pages_link_to_pages_that_there_are():
    links = {link for page in PAGES.glob("*.md") for link in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8"))}
    assert [link for link in links if not (PAGES / link.partition("#")[0]).is_file()] == []


def test_the_rules_leave_the_pages_address_to_the_chart():
    rules = yaml.safe_load(RULES.read_text("utf-8"))["groups"][1]["rules"]
    assert all(rule["annotations"]["runbook_url"].startswith(f"{RUNBOOKS}/") for rule in rules)
