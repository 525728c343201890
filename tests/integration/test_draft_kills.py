"""kill -9 in the middle of a step with drafts: the streams go on where there are none, and miss and repeat nothing.

And what clients are told of drafts, by `dormouse bench`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE

import pytest

from dormouse_api.v1 import inference_pb2 as pb
from tests.cli.test_cli import ENV
from tests.integration.crawling import own_copy
from tests.integration.draft_phases import DIE, FRAIL, FRAIL_HEAD, PROPOSING, SCORED, WHOLE
from tests.integration.migrate_kit import PROMPT, Reader, check_same
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
def plain(start_worker, tiny_model):
    worker = start_worker(tiny_model)
    worker.start()
    return worker


@pytest.fixture(scope="module")
def drafters(plain, tiny_model, tmp_path_factory):
    """A draft model that is always right, and a head that has learned an answer, by their methods."""
    root = tmp_path_factory.mktemp("drafters")
    answer = plain.stream(PROMPT, max_tokens=LONG // 2, temperature=0, ignore_eos=True)
    learned = [*PROMPT, *(token for message in answer for token in message.token_ids)]
    return {
        "draft": draft_kit.same(root / "model", tiny_model),
        "eagle": draft_kit.head(root / "head", tiny_model, rows=[learned], steps=12),
    }


@pytest.fixture(scope="module")
def start_drafting(start_worker, tiny_model, drafters, tmp_path_factory):
    """Start workers that draft by a method, and die on order."""

    def start(method):
        model = own_copy(tiny_model, tmp_path_factory.mktemp("own") / "model")
        flags = ("--speculation-method", method, "--speculation-model", str(drafters[method]), "--max-num-seqs", "32")
        frail = FRAIL if method == "draft" else FRAIL_HEAD
        worker = start_worker(model, *frail, *flags, "--engine-restart-window", "0")
        worker.start()
        return worker

    return start


@pytest.mark.parametrize(
    ("method", "phases"),
    [("draft", (PROPOSING, PROPOSING)), ("draft", (SCORED, SCORED)), ("eagle", (SCORED, PROPOSING))],
)
async def test_streams_go_on_without_drafts_when_the_engine_or_the_whole_worker_is_killed(
    start_drafting, plain, method, phases
):
    """First the engine alone, and its streams go on elsewhere; then, when it serves again, the whole worker."""
    drafting = await asyncio.to_thread(start_drafting, method)
    order = drafting.model / DIE
    async with gateway_of([drafting, plain]) as house:
        await only(house, "w1")
        wholes = await read_all(house, ASKED)
        for phase, whom in zip(phases, ("", WHOLE), strict=True):
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


def counted(worker, name):
    """Return a counter of drafts."""
    start = f"vllm:spec_decode_num_{name}_total"
    return sum(float(line.split()[-1]) for line in worker.page().splitlines() if line.startswith(start))


async def test_bench_tells_how_many_of_a_heads_drafts_were_taken(start_drafting):
    worker = await asyncio.to_thread(start_drafting, "eagle")
    asked = ("--num-prompts", "4", "--random-input-len", "40", "--random-output-len", "40", "--warmups", "0")
    async with gateway_of([worker]) as house:
        command = (sys.executable, "-m", "dormouse_cli", "bench", "--model", "tiny", "--address", house.address, *asked)
        bench = await asyncio.create_subprocess_exec(*command, "-o", "json", env=ENV, stdout=PIPE)
        stdout, _ = await bench.communicate()
    told = json.loads(stdout)
    scored, taken = (counted(worker, name) for name in ("draft_tokens", "accepted_tokens"))
    assert scored > 0
    assert told["draft_acceptance"] == pytest.approx(taken / scored)
