"""Tokens are peft's own, in float32, with adapters that peft wrote: every rank, all linear maps, one batch."""

from __future__ import annotations

import functools
from typing import NamedTuple

import msgspec
import pytest

from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.adapters import AdapterSlots
from dormouse_worker.engine.testing import make_add
from dormouse_worker.model.attention.native import NativeBackend
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.loader import load
from tests.peft_kit import greedy_tokens, make_adapter
from tests.worker.engine.engine_kit import finish
from tests.worker.model.test_parity import BLOCK_SIZE, MAX_TOKENS, PROMPTS, make_engine

RANKS = (1, 8, 64)
PATHS = {  # architecture -> who computes
    "llama": "native",
    "qwen2": "native",
    "qwen3": "native",
    "ministral": "lean",
    "gemma3_text": "transformers",
    "phi": "transformers",
}
SETTINGS = ({"seqs": 6}, {"tokens": 7}, {"num_blocks": 12, "host_blocks": 12}, {"num_blocks": 12})
SAMPLE = ("llama", "gemma3_text")  # the rest is slow


class Case(NamedTuple):
    """A model with adapters, and what peft says with each."""

    model: object
    backend: object
    digests: dict[int, str]  # by rank; 0 = the base
    expected: dict[tuple[int, str], list[int]]  # rank and prompt -> tokens


@pytest.fixture(scope="module")
def case_of(tiny_model, tmp_path_factory):
    """Return a function architecture → Case."""

    @functools.cache
    def case(architecture):
        folder, base, path = tmp_path_factory.mktemp(architecture), tiny_model(architecture), PATHS[architecture]
        made = {rank: make_adapter(folder / str(rank), base, rank=rank) for rank in RANKS}
        expected = {
            (rank, name): greedy_tokens(base, made.get(rank), prompt, MAX_TOKENS, ignore_eos=True)
            for rank in (0, *RANKS)
            for name, prompt in PROMPTS.items()
        }
        settings = EngineSettings(
            model=str(base),
            block_size=BLOCK_SIZE,
            model_impl="transformers" if path == "transformers" else "lean",
            enable_lora=True,
            max_loras=2,
            max_lora_rank=max(RANKS),
            max_cpu_loras=len(RANKS),
        )
        model = load(settings, CpuDevice(Host()))
        backend = NativeBackend() if path == "native" else SdpaBackend()
        digests = {rank: model.adapters.add(directory).digest for rank, directory in made.items()}
        return Case(model, backend, {0: "", **digests}, expected)

    return case


def engine_of(case, **settings):
    """Return an engine that knows the adapters, with fewer slots than there are."""
    slots = AdapterSlots(2)
    slots.note(case.model.adapters.infos, {})
    return make_engine(case.model, backend=case.backend, adapters=slots, **settings)


def said(case, **settings):
    """Return what each adapter says to each prompt when all are asked for at once."""
    engine = engine_of(case, **settings)
    for rank, prompt in case.expected:
        message = make_add(f"{rank}/{prompt}", PROMPTS[prompt], max_tokens=MAX_TOKENS)
        assert engine.add(msgspec.structs.replace(message, adapter=case.digests[rank])) is None
    told = finish(engine, {f"{rank}/{prompt}": [] for rank, prompt in case.expected})
    return {(int(key.partition("/")[0]), key.partition("/")[2]): tokens for key, tokens in told.items()}


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(
    "architecture", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.slow) for name in PATHS]
)
def test_batches_that_mix_adapters_chunks_and_preemption_say_what_peft_says(case_of, architecture, settings):
    case = case_of(architecture)
    differing = {str([case.expected[rank, name] for name in PROMPTS]) for rank in (0, *RANKS)}
    assert len(differing) == 1 + len(RANKS), "else equality would prove nothing"
    assert said(case, **settings) == case.expected


def test_a_request_that_goes_on_elsewhere_after_any_token_says_the_rest(case_of):
    case = case_of("llama")
    for rank in RANKS:
        whole = case.expected[rank, "3"]
        engine = engine_of(case, seqs=6)
        for cut in range(len(whole)):
            message = make_add(f"{cut}", PROMPTS["3"], max_tokens=MAX_TOKENS)
            resumed = msgspec.structs.replace(message, adapter=case.digests[rank], output_token_ids=whole[:cut])
            assert engine.add(resumed) is None
        told = finish(engine, {f"{cut}": [] for cut in range(len(whole))})
        assert told == {f"{cut}": whole[cut:] for cut in range(len(whole))}
