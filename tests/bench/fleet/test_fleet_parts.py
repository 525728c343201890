"""The audit log, the operator's processes, the deployments: what is read of them and written to them."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from bench.fleet.audit import AuditLog, parse_writes
from bench.fleet.cluster import FLEET, Cluster
from bench.fleet.deployments import Deployments, names, spread
from bench.fleet.follow import follow
from bench.fleet.operators import environment, parse_resident, sum_reads
from dormouse_kube.api import INFERENCE_DEPLOYMENTS
from dormouse_kube.errors import Gone
from dormouse_kube.testing import FakeKube
from dormouse_operator.manifests import revision_of
from dormouse_operator.metrics import Metrics
from dormouse_operator.parse import parse_deployment
from dormouse_operator.settings import parse_settings
from localkube.spec import Paths


def make_line(verb="patch", resource="pods", subresource=None):
    reference = {"resource": resource, "namespace": FLEET} | ({"subresource": subresource} if subresource else {})
    return json.dumps({"kind": "Event", "verb": verb, "objectRef": reference, "stage": "ResponseComplete"}).encode()


def test_writes_are_counted_by_what_was_written_and_the_lease_is_none():
    lines = [make_line(), make_line(), make_line(subresource="status"), make_line("update", "leases")]
    assert parse_writes(lines) == {"patch pods": 2, "patch pods/status": 1}


def test_the_log_is_read_on_from_where_it_was_read_to_and_half_a_line_waits(tmp_path):
    path = tmp_path / "audit.log"
    log = AuditLog(path)
    assert log.read() == {}
    path.write_bytes(make_line() + b"\n" + make_line()[:9])
    assert log.read() == {"patch pods": 1}
    assert log.read() == {}
    path.write_bytes(path.read_bytes() + make_line()[9:] + b"\n")
    assert log.read() == {"patch pods": 1}
    assert AuditLog(path).read() == {}


def test_resident_memory_is_read_from_the_kernel():
    assert parse_resident("Name:\tpython\nVmHWM:\t  9 kB\nVmRSS:\t    2048 kB\n") == 2 * 2**20
    assert parse_resident(Path(f"/proc/{os.getpid()}/status").read_text()) > 2**20
    with pytest.raises(ValueError, match="VmRSS"):
        parse_resident("Name:\tpython\nState:\tZ (zombie)\n")


def test_reads_are_summed_from_the_operators_own_metrics():
    metrics = Metrics()
    for verb in ("get", "get", "list", "patch", "create"):
        metrics.count_call(verb, "pods", 200)
    assert sum_reads(metrics.render().decode()) == 3


def test_an_operator_that_has_not_called_yet_has_read_nothing_and_one_that_does_not_count_is_an_error():
    assert sum_reads(Metrics().render().decode()) == 0
    with pytest.raises(ValueError, match="no dormouse_kube_requests"):
        sum_reads("# nothing\n")


def test_the_operators_settings_are_the_defaults_but_for_who_it_is(tmp_path):
    cluster = Cluster(Paths(tmp_path), tmp_path, tmp_path / "kwok")
    ours, defaults = parse_settings(environment(cluster, "operator-1", 18081)), parse_settings({})
    changed = {name for name in type(ours).__slots__ if getattr(ours, name) != getattr(defaults, name)}
    assert changed == {"namespace", "pod_name", "pod_uid", "tokens_dir", "metrics_port"}


def test_names_are_spread_evenly_and_none_is_named_twice():
    assert names(9, 11) == ["d00009", "d00010"]
    assert spread(names(0, 100), 4) == ["d00000", "d00025", "d00050", "d00075"]
    assert spread(names(0, 3), 50) == names(0, 3)


async def test_every_change_needs_another_pod():
    kube = FakeKube()
    deployments = Deployments(kube)
    answered = await deployments.create(["d1", "d2"])
    assert len(answered) == 2
    revisions = set()
    for _ in range(3):
        stored = await kube.get(INFERENCE_DEPLOYMENTS, FLEET, "d1")
        revisions.add(revision_of(parse_deployment(stored), "image"))
        await deployments.change("d1")
    assert len(revisions) == 3


async def test_what_exists_and_what_changes_is_told_until_the_stream_breaks():
    kube = FakeKube()
    deployments = Deployments(kube)
    await deployments.create(["d1"])
    told, heard = [], asyncio.Event()

    def tell(obj, is_gone):
        told.append((obj["metadata"]["name"], is_gone))
        heard.set()

    following = asyncio.ensure_future(follow(kube, INFERENCE_DEPLOYMENTS, tell))
    for act in (None, deployments.create(["d2"]), kube.delete(INFERENCE_DEPLOYMENTS, FLEET, "d1")):
        if act:
            await act
        await heard.wait()
        heard.clear()
    assert told == [("d1", False), ("d2", False), ("d1", True)]
    kube.end_watches(Gone("too old"))
    with pytest.raises(Gone):
        await following
