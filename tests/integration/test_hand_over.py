"""Streams that move between real workers over one store take their blocks along, and say what they would have said."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_worker.model.testing import write_tiny_model
from tests.integration.conftest import EPOCH
from tests.integration.migrate_kit import PROMPT, Reader, check_same
from tests.integration.test_adapter_faults import until
from tests.integration.test_migrate import gateway_of, give_up, only
from tests.integration.test_sessions import counted

pytestmark = pytest.mark.timeout(240)

LONG = 3000  # tokens: nobody is at the end when something happens
BEFORE = 100
NUM_BLOCKS = (len(PROMPT) + BEFORE) // 16 - 1


@pytest.fixture(scope="module")
def pair(start_worker, tmp_path_factory):
    """Two workers that share a directory."""
    folder = tmp_path_factory.mktemp("shared")
    model = write_tiny_model(folder / "model", max_position_embeddings=4096, vocab_size=512)
    flags = ["--max-model-len", "4096", "--kv-store-dir", str(folder / "kv"), "--kv-store-size", "256Mi"]
    made = [start_worker(model, *flags), start_worker(model, *flags)]
    for worker in made:
        worker.start()
    return made


def params(seed):
    return pb.SamplingParams(temperature=0.9, seed=seed, ignore_eos=True, max_tokens=LONG)


async def test_a_stream_takes_its_blocks_along_and_the_target_computes_none_of_them(pair):
    first, second = pair
    async with gateway_of(pair) as house:
        whole = await Reader(house, params(1)).read()
        await only(house, "w1")
        await Reader(house, params(2)).read()  # the target has computed a prompt: it knows what reading is worth
        for here, there in ((first, second), (second, first)):
            await only(house, f"w{pair.index(here)}")
            await asyncio.to_thread(here.operate, "ResetPrefixCache", control.ResetPrefixCacheRequest(epoch=EPOCH))
            await asyncio.to_thread(there.operate, "ResetPrefixCache", control.ResetPrefixCacheRequest(epoch=EPOCH))
            before, handed = counted(there, "hits_total"), counted(here, "handed_over_total")
            reader = Reader(house, params(1))
            await reader.begin(BEFORE)
            await only(house, f"w{pair.index(there)}")
            await asyncio.to_thread(give_up, here)
            check_same(await reader.read(), whole)
            assert counted(here, "handed_over_total") - handed >= NUM_BLOCKS
            assert counted(there, "hits_total") - before >= NUM_BLOCKS


async def test_what_a_draining_worker_runs_is_there_when_it_is_killed(pair):
    first, second = pair
    async with gateway_of(pair) as house:
        whole = await Reader(house, params(3)).read()
        await asyncio.to_thread(first.operate, "ResetPrefixCache", control.ResetPrefixCacheRequest(epoch=EPOCH))
        before, handed = counted(second, "hits_total"), counted(first, "handed_over_total")
        reader = Reader(house, params(3))
        await reader.begin(BEFORE)
        await only(house, "w1")
        await asyncio.to_thread(first.operate, "Drain", control.DrainRequest(epoch=EPOCH, timeout_seconds=0.001))
        await asyncio.to_thread(until, lambda: counted(first, "handed_over_total") - handed >= NUM_BLOCKS, "written")
        os.kill(first.engine(), signal.SIGKILL)
        check_same(await reader.read(), whole)
        assert counted(second, "hits_total") - before >= NUM_BLOCKS - 1
