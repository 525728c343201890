"""Every object that the chart makes, judged by a real API server: strictly, without a warning, nothing created.

What other projects define (monitors, routes) is judged by their own schemas, under a group of this run, so that
the cluster's other users see nothing of them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.bootstrap import ROOT
from tools.kubectl import Cluster, CommandFailed
from tools.kustomize import BASE

pytestmark = pytest.mark.cluster

Manifest = dict[str, Any]
FOREIGN = ROOT / "tests" / "chart" / "foreign"
STRICTLY = ["--dry-run=server", "--server-side", "--force-conflicts", "--validate=strict", "--warnings-as-errors"]


class Judge:
    """Asks the API server about objects as if they were made in one namespace."""

    def __init__(self, cluster: Cluster, namespace: str, groups: dict[str, str]) -> None:
        """Take the groups whose kinds are installed under another one."""
        self.cluster = cluster
        self.namespace = namespace
        self.groups = groups

    def accepts(self, manifest: Manifest) -> bool:
        """Return True. Raises CommandFailed with what is wrong."""
        here = {**manifest, "metadata": {**manifest["metadata"]}}
        place = []
        if "namespace" in here["metadata"]:
            here["metadata"]["namespace"] = self.namespace
            place = ["-n", self.namespace]
        group, slash, version = here["apiVersion"].rpartition("/")
        here["apiVersion"] = f"{self.groups.get(group, group)}{slash}{version}"
        answer = self.cluster.kubectl("apply", *STRICTLY, *place, "-f", "-", stdin=json.dumps(here))
        return "serverside-applied (server dry run)" in answer


def renamed(path: Path, suffix: str) -> Manifest:
    """Return a definition under a group of this run."""
    crd: Manifest = json.loads(path.read_text())
    group = f"{crd['spec']['group']}.{suffix}"
    return {
        **crd,
        "metadata": {"name": f"{crd['spec']['names']['plural']}.{group}"},
        "spec": {**crd["spec"], "group": group, "names": {**crd["spec"]["names"], "shortNames": [], "categories": []}},
    }


@pytest.fixture(scope="module")
def foreign(cluster: Cluster) -> Iterator[dict[str, str]]:
    """The definitions of other projects; yields group → the group that stands for it."""
    suffix = f"{secrets.token_hex(3)}.chart-test.dormouse.dev"
    crds = [renamed(path, suffix) for path in sorted(FOREIGN.glob("*.json"))]
    names = [crd["metadata"]["name"] for crd in crds]
    try:
        for crd in crds:
            cluster.kubectl("create", "-f", "-", stdin=json.dumps(crd))
        for name in names:
            cluster.kubectl("wait", f"crd/{name}", "--for=condition=Established", "--timeout=60s")
        yield {crd["spec"]["group"].removesuffix(f".{suffix}"): crd["spec"]["group"] for crd in crds}
    finally:
        cluster.kubectl("delete", "crd", *names, "--ignore-not-found", "--wait=false")


@pytest.fixture
def judge(cluster: Cluster, namespace: str, foreign: dict[str, str]) -> Judge:
    """The API server, as a judge."""
    return Judge(cluster, namespace, foreign)


def test_the_defaults_are_accepted(judge: Judge, default: list[Manifest]):
    assert all(judge.accepts(manifest) for manifest in default)


def test_everything_on_is_accepted(judge: Judge, everything: list[Manifest]):
    groups = {manifest["apiVersion"].rpartition("/")[0] for manifest in everything}
    assert judge.groups.keys() <= groups, "the schemas of other projects are used"
    assert all(judge.accepts(manifest) for manifest in everything)


def test_the_kustomize_base_is_accepted(judge: Judge):
    built = yaml.safe_load_all(judge.cluster.kubectl("kustomize", str(BASE)))
    assert all(judge.accepts(manifest) for manifest in built)


def test_the_judge_refuses_what_a_schema_does_not_know(judge: Judge, everything: list[Manifest]):
    route = next(manifest for manifest in everything if manifest["kind"] == "GRPCRoute")
    with pytest.raises(CommandFailed, match=r"spec\.hosts: field not declared"):
        judge.accepts({**route, "spec": {**route["spec"], "hosts": ["a"]}})
