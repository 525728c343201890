"""pyproject.toml says which version this is; whoever cannot read it there says the same."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

import dormouse_api
from dormouse_operator.settings import parse_settings
from tools.bootstrap import ROOT
from tools.images import content
from tools.images.build import Names

VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]


@pytest.fixture
def chart() -> dict[str, Any]:
    """What the chart says of itself."""
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "charts" / "dormouse" / "Chart.yaml").read_text("utf-8"))
    return loaded


def test_the_code_knows_its_version_where_no_distribution_is_installed():
    assert dormouse_api.__version__ == VERSION


def test_the_chart_is_of_this_version_and_installs_the_images_of_this_version(chart: dict[str, Any]):
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)


def test_every_image_is_labelled_with_this_version():
    labels = re.findall(r'org\.opencontainers\.image\.version="([^"]*)"', (ROOT / "Dockerfile").read_text("utf-8"))
    assert labels == [VERSION] * len(content.PARTS)


def test_images_are_tagged_with_this_version_and_a_digest():
    assert content.tag(ROOT).startswith(f"{VERSION}-")
    assert Names("r.example/d", "any", {}).release("worker") == f"r.example/d/worker:{VERSION}"


def test_an_operator_that_is_told_nothing_starts_workers_of_this_version():
    assert parse_settings({}).worker_image == f"ghcr.io/dormouse/worker:{VERSION}"
