"""Adapters over real ranks: tensor parallel in one pod, and stages in two. Tokens are peft's, asleep in between."""

from __future__ import annotations

import grpc
import pytest

from dormouse_api.v1 import worker_control_pb2 as control
from tests.integration.conftest import EPOCH
from tests.integration.test_adapter_faults import LORA, ask, check_answers, peft_answers, tokens, want
from tests.integration.test_group_models import PROFILED, START_S
from tests.integration.test_groups import has_state
from tests.peft_kit import LOUD, make_adapter
from tests.ports import free_port_pair

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def adapter(tiny_model, tmp_path_factory):
    return make_adapter(tmp_path_factory.mktemp("adapter") / "sql", tiny_model, rank=8, loudness=LOUD)


@pytest.fixture(scope="module")
def expected(tiny_model, adapter):
    return peft_answers(tiny_model, adapter)


@pytest.fixture(scope="module", params=[(2, 1), (1, 2)], ids=["T2", "P2"])
def leader(request, start_worker, tiny_model):
    """The first pod of a group of real ranks."""
    tensor, pipeline = request.param
    sizes = ("--tensor-parallel-size", str(tensor), "--pipeline-parallel-size", str(pipeline))
    place = ("--master-addr", "127.0.0.1", "--master-port", str(free_port_pair())) if pipeline > 1 else ()
    flags = ("--kv-cache-memory", "16Mi", *LORA, *sizes, *place)
    leader, *_ = [start_worker(tiny_model, *flags, "--node-rank", str(ordinal)) for ordinal in range(pipeline)]
    leader.until(has_state(PROFILED), START_S)
    leader.start()
    return leader


def test_ranks_say_what_peft_says_before_and_after_sleeps(leader, adapter, expected):
    want(leader, "sql", source=f"file://{adapter}")
    check_answers(leader, expected)
    for level in (1, 2):
        leader.operate("Sleep", control.SleepRequest(epoch=EPOCH, level=level))
        leader.operate("WakeUp", control.WakeUpRequest(epoch=EPOCH))
        check_answers(leader, expected)
    want(leader)
    assert tokens(ask(leader, "tiny")) == expected["tiny"]


@pytest.mark.parametrize("leader", [(1, 2)], ids=["P2"], indirect=True)
def test_a_group_of_several_pods_refuses_what_a_hub_has(leader):
    with pytest.raises(grpc.RpcError) as caught:
        want(leader, "hub", source="hf://org/hub")
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "not fetched for a group of several pods" in caught.value.details()
