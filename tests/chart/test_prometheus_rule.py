"""The alerts as the chart installs them."""

from __future__ import annotations

import pytest

from tests.chart.test_rendering import Manifest, Render, named, of_kind
from tools.alerts import ALERTS

pytestmark = pytest.mark.cluster

NAME = "r-dormouse-alerts"


def test_there_are_no_alerts_unless_they_are_wanted(default: list[Manifest]):
    assert of_kind(default, "PrometheusRule") == []


def test_every_alert_is_installed_with_the_address_of_its_page(render: Render):
    settings = ("alerts.enabled=true", "alerts.labels.prometheus=main", "alerts.runbookUrl=https://x.example/books/")
    made = named(render(*settings), "PrometheusRule", NAME)
    assert made["metadata"]["labels"]["prometheus"] == "main"
    rules = made["spec"]["groups"][1]["rules"]
    links = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in rules}
    assert links == {alert.name: f"https://x.example/books/{alert.runbook}.md" for alert in ALERTS}
    assert "{{ $labels.path }}" in next(r for r in rules if r["alert"] == "DormouseWakeSlow")["annotations"]["summary"]
