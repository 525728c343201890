"""kill -9 in the middle of a step with drafts: the streams go on where there are none, and miss and repeat nothing."""

from __future__ import annotations

import asyncio
import json

import pytest

from dormouse_api.v1 import inference_pb2 as pb
from tests.integration.crawling import own_copy
from tests.integration.draft_phases import DIE, FRAIL, PHASES, WHOLE
from tests.integration.migrate_kit import Reader, check_same
from tests.integration.test_migrate import LONG, PENALTIES, Only, end_all, gateway_of, only, read_all
from tests.waiting import until
from tests.worker.executor import draft_kit

BOUND = pb.StructuredOutputs(
    json_schema=json.dumps({"type": "array", "items": {"enum": ["a", "bc", 7]}, "minItems": 20})
)
ASKED = [
    pb.SamplingParams(temperature=0, seed=1, max_tokens=LONG, ignore_eos=True),
    pb.SamplingParams(temperature=0, seed=1, max_tokens=LONG, ignore_eos=True, logprobs=0, **PENALTIES),
    pb.SamplingParams(temperature=0.9, seed=9, n=2, logprobs=1, ignore_eos=True, max_tokens=LONG, top_p=0.95),
    pb.SamplingParams(temperature=0.8, seed=4, max_tokens=LONG, structured_outputs=BOUND),
]


@pytest.fixture(scope="module")
def start_drafting(start_worker, tiny_model, tmp_path_factory):
    """Start workers with a draft model that is always right, and which die on order."""
    drafter = draft_kit.same(tmp_path_factory.mktemp("drafter") / "model", tiny_model)

    def start():
        model = own_copy(tiny_model, tmp_path_factory.mktemp("own") / "model")
        flags = ("--speculation-method", "draft", "--speculation-model", str(drafter), "--max-num-seqs", "32")
        worker = start_worker(model, *FRAIL, *flags, "--engine-restart-window", "0")
        worker.start()
        return worker

    return start


@pytest.fixture(scope="module")
def plain(start_worker, tiny_model):
    worker = start_worker(tiny_model)
    worker.start()
    return worker


@pytest.mark.parametrize("phase", PHASES)
async def test_streams_go_on_without_drafts_when_the_engine_or_the_whole_worker_is_killed(start_drafting, plain, phase):
    """First the engine alone, and its streams go on elsewhere; then, when it serves again, the whole worker."""
    drafting = await asyncio.to_thread(start_drafting)
    order = drafting.model / DIE
    async with gateway_of([drafting, plain]) as house:
        await only(house, "w1")
        wholes = await read_all(house, ASKED)
        for whom in ("", WHOLE):
            await only(house, "w0")
            order.write_text(f"{phase} {whom}")
            ending = asyncio.create_task(end_all([Reader(house, params) for params in ASKED]))
            await until(lambda: not order.exists())
            house.gateway.router.pool.policy = Only(("w1",))
            for answer, whole in zip(await ending, wholes, strict=True):
                check_same(answer, whole)
            if not whom:
                await asyncio.to_thread(drafting.start)
        assert house.gateway.metrics.value("dormouse_migrated_total", outcome="done") > 0
        assert house.gateway.migrator.room.used_bytes == 0
    assert drafting.process.wait() < 0
