"""Streams that move between real workers over one store take their blocks along, and say what they would have said."""

from __future__ import annotations

import asyncio

import pytest

from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_worker.model.testing import write_tiny_model
from tests.integration.conftest import EPOCH
from tests.integration.migrate_kit import PROMPT, Reader, check_same
from tests.integration.test_migrate import gateway_of, give_up, only
from tests.integration.test_sessions import counted

pytestmark = pytest.mark.timeout(240)

LONG = 2000  # tokens: nobody is at the end when something happens
BEFORE = 100
NUM_BLOCKS = (len(PROMPT) + BEFORE) // 16


@pytest.fixture
def pair(start_worker, tmp_path):
    """Two workers that share a directory."""
    model = write_tiny_model(tmp_path / "model", max_position_embeddings=4096, vocab_size=512)
    flags = ["--max-model-len", "4096", "--kv-store-dir", str(tmp_path / "kv"), "--kv-store-size", "256Mi"]
    made = [start_worker(model, *flags), start_worker(model, *flags)]
    for worker in made:
        worker.start()
    return made


async def test_a_stream_takes_its_blocks_along_and_the_target_computes_none_of_them(pair):
    source, target = pair
    params = pb.SamplingParams(temperature=0.9, seed=1, ignore_eos=True, max_tokens=LONG)
    async with gateway_of(pair) as house:
        whole = await Reader(house, params).read()
        await asyncio.to_thread(source.operate, "ResetPrefixCache", control.ResetPrefixCacheRequest(epoch=EPOCH))
        reader = Reader(house, params)
        await reader.begin(BEFORE)
        await only(house, "w1")
        await asyncio.to_thread(give_up, source)
        check_same(await reader.read(), whole)
    assert counted(source, "handed_over_total") >= NUM_BLOCKS
    assert counted(target, "hits_total") >= NUM_BLOCKS
