"""`dormouse doctor`: what is found, what to do, and what the exit code says."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from dormouse_cli import checks
from dormouse_cli.checks import Level
from dormouse_cli.cluster import DEPLOYMENTS, NODES
from dormouse_cli.versions import difference
from dormouse_cli.view import read
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, LEASES, PODS
from dormouse_kube.errors import Forbidden, NotFound, Unavailable
from tests.cli import kit

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def part(name, *, ready=2, wanted=2, version="0.1.0"):
    labels = {
        "app.kubernetes.io/part-of": "dormouse",
        "app.kubernetes.io/component": name,
        "app.kubernetes.io/version": version,
    }
    return {
        "metadata": {"name": f"dormouse-{name}", "namespace": "dormouse", "labels": labels},
        "spec": {"replicas": wanted},
        "status": {"readyReplicas": ready},
    }


def lease(renewed):
    return {
        "metadata": {"name": "dormouse-operator", "namespace": "dormouse"},
        "spec": {"renewTime": renewed.isoformat(), "leaseDurationSeconds": 15, "holderIdentity": "pod-a"},
    }


def well(*deployments, pods=()):
    """A cluster without any finding."""
    fake = kit.cluster(*deployments, pods=pods)
    for name in ("operator", "gateway"):
        fake.put(DEPLOYMENTS, part(name))
    fake.put(LEASES, lease(datetime.now(UTC)))
    fake.put(NODES, {"metadata": {"name": "node-a"}, "status": {"allocatable": {"cpu": "8"}}})
    return fake


def test_a_cluster_that_is_well_has_no_finding_to_act_on(dormouse):
    result = dormouse(well(kit.deployment(), pods=(kit.pod(),)), "doctor")
    assert result.exit_code == 0
    assert {line.split()[0] for line in result.stdout.splitlines()} == {"ok"}
    assert "ok       default/tiny: Active, 1 of 1 replicas serve" in result.stdout


def test_a_problem_is_told_with_its_remedy_and_exit_code_7(dormouse):
    raw = kit.deployment()
    raw["status"]["conditions"][-1] = kit.condition("Degraded", "True", "ImagePullFailed", "no such image")
    result = dormouse(well(raw), "doctor")
    assert result.exit_code == 7
    assert (
        "problem  default/tiny: ImagePullFailed: no such image\n"
        "         what to do: correct spec.image or give the node access to the registry\n"
    ) in result.stdout


def test_programs_get_the_findings_as_json(dormouse):
    found = json.loads(dormouse(well(), "doctor", "-o", "json").stdout)
    assert {"level": "ok", "about": "Kubernetes", "words": "the API server is v1.34.1", "remedy": ""} in found


def test_a_missing_installation_is_a_problem(dormouse):
    fake = kit.cluster()
    result = dormouse(fake, "doctor")
    assert result.exit_code == 7
    assert "no operator is installed" in result.stdout
    assert "no gateway is installed" in result.stdout


def test_a_cluster_without_our_kind_is_told_what_is_missing(dormouse):
    fake = well()
    fake.fail("list", INFERENCE_DEPLOYMENTS, NotFound("the server could not find the requested resource"))
    result = dormouse(fake, "doctor")
    assert (result.exit_code, "does not know this kind of inference.dormouse.dev/v1alpha1" in result.stdout) == (
        7,
        True,
    )


def test_missing_rights_are_named_with_the_commands_that_need_them(dormouse):
    fake = well()
    fake.refused = {"patch inferencedeployments", "get pods/log"}
    shown = dormouse(fake, "doctor").stdout
    assert "warning  rights: you may not patch inferencedeployments in inference.dormouse.dev" in shown
    assert "you may not get pods/log" in shown
    assert "needed by: logs, report" in shown


@pytest.mark.parametrize("kind", [DEPLOYMENTS, LEASES, NODES, PODS, INFERENCE_DEPLOYMENTS], ids=lambda k: k.plural)
def test_what_may_not_be_seen_is_a_warning_and_the_rest_goes_on(dormouse, kind):
    fake = well()
    fake.fail("list", kind, Forbidden(f'{kind.plural} is forbidden: User "x" cannot list resource', status=403))
    result = dormouse(fake, "doctor")
    assert result.exit_code == 0
    assert "cannot be checked" in result.stdout
    assert "Kubernetes: the API server is" in result.stdout


def test_no_cluster_is_no_finding_but_the_end(dormouse):
    fake = well()
    fake.fail("list", DEPLOYMENTS, Unavailable("connection refused"))
    assert dormouse(fake, "doctor").exit_code == 3


# --- the judgements ---


@pytest.mark.parametrize(
    ("version", "level"),
    [("v1.28.9", Level.BAD), ("v1.29.0", Level.OK), ("v1.40.1+k3s1", Level.OK), ("main", Level.OK)],
)
def test_only_a_known_old_kubernetes_is_a_problem(version, level):
    assert checks.kubernetes(version).level is level


@pytest.mark.parametrize(("ready", "level"), [(2, Level.OK), (1, Level.WARN), (0, Level.BAD)])
def test_a_part_is_as_well_as_its_pods_are(ready, level):
    (finding,) = checks.part("gateway", [part("gateway", ready=ready), part("operator")], "0.1.0")
    assert (finding.level, bool(finding.remedy)) == (level, level is not Level.OK)


@pytest.mark.parametrize(
    ("own", "theirs", "words"),
    [
        ("0.2.0", "0.1.9", "it is older than this command line (0.1.9, 0.2.0)"),
        ("0.1.0", "1.0.0", "it is newer than this command line (1.0.0, 0.1.0)"),
        ("0.1.0", "0.1.7", ""),
        ("unknown", "0.1.7", ""),
        ("0.1.0", "", ""),
    ],
)
def test_an_installation_of_another_version_is_told(own, theirs, words):
    assert difference(own, theirs) == words
    findings = list(checks.part("operator", [part("operator", version=theirs)], own))
    assert [finding.words.endswith(words) for finding in findings[1:]] == ([True] if words else [])


@pytest.mark.parametrize(("age_s", "level"), [(5, Level.OK), (29, Level.OK), (31, Level.BAD)])
def test_a_lease_that_nobody_renews_means_that_nobody_leads(age_s, level):
    (finding,) = checks.leader([lease(NOW - timedelta(seconds=age_s))], NOW)
    assert finding.level is level


def test_leases_of_others_say_nothing():
    other = lease(NOW - timedelta(days=1))
    other["metadata"]["name"] = "kube-scheduler"
    assert list(checks.leader([other], NOW)) == []


def test_a_deployment_that_nobody_looked_at_is_a_problem():
    raw = kit.deployment()
    raw["status"] = {}
    (finding,) = checks.deployment(read(raw))
    assert (finding.level, "watch.namespaces" in finding.remedy) == (Level.BAD, True)


def test_a_pod_that_restarts_again_and_again_is_a_warning():
    pods = [kit.pod(containerStatuses=[{"name": "worker", "restartCount": 4}])]
    raw = kit.deployment()
    raw["metadata"]["generation"] = 1
    (finding,) = checks.deployment(read(raw, pods))
    assert (finding.level, "has restarted 4 times" in finding.words) == (Level.WARN, True)


@pytest.mark.parametrize(
    ("spec", "is_missing"),
    [
        ({"engine": {"device": "cuda"}}, True),
        ({"engine": {"device": "cuda"}, "gpu": {"resourceName": "amd.com/gpu"}}, False),
        ({"engine": {"device": "cuda"}, "gpu": {"claims": [{"name": "gpu", "resourceClaimName": "a"}]}}, False),
        ({"engine": {"device": "cuda"}, "gpu": {"pool": {"name": "shared"}}}, False),
        ({"engine": {"device": "cpu"}}, False),
        ({"engine": {"device": "cuda"}, "replicas": 0}, False),
    ],
)
def test_a_device_that_no_node_offers_is_a_problem(spec, is_missing):
    nodes = [{"status": {"allocatable": {"amd.com/gpu": "1", "nvidia.com/gpu": "0"}}}]
    raw = kit.deployment(**spec)
    assert bool(list(checks.capacity([(read(raw), raw)], nodes))) is is_missing
