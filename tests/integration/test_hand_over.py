"""Streams that move between real workers take their blocks along, over one store or the network, and say the same."""

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

LONG = 2000  # tokens: hardly anybody is at the end when something happens
BEFORE = 100
NUM_BLOCKS = (len(PROMPT) + BEFORE) // 16
TRIES = 5


@pytest.fixture
def start_pair(start_worker, tmp_path):
    """Start two workers, over these directories."""
    model = write_tiny_model(tmp_path / "model", max_position_embeddings=4096, vocab_size=512)

    def start(*names):
        made = []
        for name in names:
            store = ["--kv-store-dir", str(tmp_path / name), "--kv-store-size", "256Mi"]
            made.append(start_worker(model, "--max-model-len", "4096", *store))
        for worker in made:
            worker.start()
        return made

    return start


async def move(house, source, params):
    """Have a worker give up a stream in its middle; return what its client got.

    A worker that came to the end before this process had its turn is asked again.
    """
    for _ in range(TRIES):
        await only(house, "w0")
        await asyncio.to_thread(source.operate, "ResetPrefixCache", control.ResetPrefixCacheRequest(epoch=EPOCH))
        reader = Reader(house, params)
        await reader.begin(BEFORE)
        await only(house, "w1")
        await asyncio.to_thread(give_up, source)
        told = await reader.read()
        if told.choices[0].migrated:
            return told
    raise AssertionError(f"no stream was moved in {TRIES} tries")


@pytest.mark.parametrize(("names", "is_sent"), [(("kv", "kv"), False), (("first", "second"), True)])
async def test_a_stream_takes_its_blocks_along_and_the_target_computes_none_of_them(start_pair, names, is_sent):
    source, target = pair = start_pair(*names)
    params = pb.SamplingParams(temperature=0.9, seed=1, ignore_eos=True, max_tokens=LONG)
    async with gateway_of(pair) as house:
        whole = await Reader(house, params).read()
        check_same(await move(house, source, params), whole)
    assert counted(source, "handed_over_total") >= NUM_BLOCKS
    assert counted(target, "hits_total") >= NUM_BLOCKS
    assert counted(target, "fetched_total") >= (NUM_BLOCKS if is_sent else 0)
