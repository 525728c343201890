"""Every alert fires when it should and clears afterwards, as Prometheus' own promtool says; and each has its page."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from localkube.packages import PROMETHEUS, ensure_package
from localkube.progress import Progress
from localkube.spec import Paths
from tests.tools.alert_stories import STORIES
from tools.alerts import ALERTS, RUNBOOKS
from tools.bootstrap import ROOT, cache_root
from tools.charts import CHART_FILES

RULES = CHART_FILES / "alerts" / "dormouse.yaml"
PAGES = ROOT / "docs" / "runbooks"


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
