"""One process that answers for the workers of all pods."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from bench.fleet.cluster import OPERATOR_SEED
from bench.fleet.fake_workers import Workers, called_address
from dormouse_api.names import LABEL_REVISION, Role
from dormouse_api.testing_tickets import book
from dormouse_operator.act.workers import GrpcWorkerControl
from dormouse_operator.model import WorkerState
from dormouse_operator.testing.grpc import serve_found
from dormouse_operator.testing.nouns import a_pod


@dataclass
class Call:
    """What gRPC tells of a call."""

    address: str

    def peer(self):
        return f"ipv4:{self.address}:40000"


def make_pod(uid="u1", ip="10.200.0.7", revision="abc"):
    status = {"podIP": ip} if ip else {}
    return {"metadata": {"uid": uid, "labels": {LABEL_REVISION: revision}}, "status": status}


@pytest.mark.parametrize("peer", ["ipv4:10.200.0.7:43210", "ipv6:%5B::ffff:10.200.0.7%5D:43210"])
def test_the_address_that_was_called_is_the_callers(peer):
    assert called_address(peer) == "10.200.0.7"


def test_a_caller_without_an_address_is_named():
    with pytest.raises(ValueError, match="the caller is 'unix:'"):
        called_address("unix:")


async def test_a_worker_answers_for_its_pod_with_its_blocks():
    workers = Workers()
    workers.see(make_pod(), False)
    status = (await workers.find(Call("10.200.0.7"))).status()
    assert (status.pod_uid, status.settings_digest, status.state) == ("u1", "abc", WorkerState.PROFILED)
    assert status.report.num_gpu_blocks > 0


async def test_a_worker_keeps_its_state_while_its_pod_changes():
    workers = Workers()
    workers.see(make_pod(), False)
    (await workers.find(Call("10.200.0.7"))).initialize_cache(1, 100)
    workers.see(make_pod(), False)
    assert (await workers.find(Call("10.200.0.7"))).state is WorkerState.READY


async def test_a_call_before_the_pod_was_heard_of_waits_for_it():
    workers = Workers()
    call = asyncio.ensure_future(workers.find(Call("10.200.0.7")))
    workers.see(make_pod(ip=""), False)
    workers.see(make_pod("other", "10.200.0.8"), False)
    await asyncio.sleep(0)
    assert not call.done()
    workers.see(make_pod(), False)
    assert (await call).pod_uid == "u1"


def test_an_address_given_to_a_new_pod_before_the_end_of_the_old_one_is_told_is_the_new_ones():
    workers = Workers()
    workers.see(make_pod("old"), False)
    workers.see(make_pod("new"), False)
    workers.see(make_pod("old"), True)
    assert workers.by_address["10.200.0.7"].pod_uid == "new"
    workers.see(make_pod("new"), True)
    assert workers.by_address == {}


async def test_the_operators_own_client_reaches_the_worker_of_the_address_it_calls():
    workers = Workers()
    workers.see(make_pod(ip="127.0.0.1"), False)
    async with serve_found(workers.find, OPERATOR_SEED, "0.0.0.0:0") as port:
        pod = a_pod(uid="u1", ip="127.0.0.1")
        control = GrpcWorkerControl(book(Role.OPERATOR, OPERATOR_SEED), port=port)
        assert (await control.get_status(pod)).pod_uid == "u1"
        allocated = await control.initialize_cache(pod, epoch=1, num_gpu_blocks=7, num_cpu_blocks=0)
    assert (allocated.state, allocated.num_gpu_blocks) == (WorkerState.READY, 7)
