"""Tokens with an adapter are those of transformers with merged weights, in float32, on every path."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from dormouse_worker.engine.adapters import AdapterSlots
from dormouse_worker.engine.testing import make_add
from dormouse_worker.model.testing import reference_generate
from dormouse_worker.model.testing_adapters import merge_adapter, write_adapter
from tests.worker.engine.engine_kit import finish
from tests.worker.model.adapters.loading import load_adaptable
from tests.worker.model.test_parity import BLOCK_SIZE, MAX_TOKENS, PROMPTS, make_engine

ATTENTION, MLP = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
NUM_SLOTS = 2
# name -> rank, target modules, alpha, further fields of the configuration, what B · A is multiplied by
ADAPTERS = {
    "one": (1, ("q_proj", "v_proj"), 2, {}, 2.0),
    "all": (8, (*ATTENTION, *MLP), 8, {}, 1.0),
    "stable": (6, MLP, 6, {"use_rslora": True}, math.sqrt(6)),
}
OF_OTHERS = {
    "phi": ("q_proj", "dense", "fc1", "fc2"),
    "gpt_neox": ("query_key_value", "dense_4h_to_h"),
    "mixtral": ATTENTION,  # its experts are no linear layers
}
PATHS = [
    *(("llama", path) for path in ("native", "lean", "transformers")),
    *((name, "native") for name in ("qwen2", "qwen3", "ministral")),
    *((name, "transformers") for name in ("gemma3_text", "phi", "gpt_neox", "mixtral")),
]


class Case(NamedTuple):
    """A model with adapters, and what each request shall say."""

    model: object
    backend: object
    digests: dict[str, str]
    expected: dict[tuple[str, str], list[int]]  # adapter ("" = the base) and prompt -> tokens


@pytest.fixture(scope="module")
def case_of(tiny_model, tmp_path_factory):
    """Return a function (architecture, path) → Case."""

    @functools.cache
    def written(architecture):
        folder, base = tmp_path_factory.mktemp(architecture), tiny_model(architecture)
        expected = {("", name): reference_generate(base, prompt, MAX_TOKENS) for name, prompt in PROMPTS.items()}
        for name, (rank, targets, alpha, config, scale) in ADAPTERS.items():
            chosen = OF_OTHERS.get(architecture, targets)
            adapter = write_adapter(folder / name, base, rank=rank, targets=chosen, alpha=alpha, seed=rank, **config)
            merged = merge_adapter(folder / f"{name}-merged", base, adapter, scale=scale)
            for prompt_name, prompt in PROMPTS.items():
                expected[name, prompt_name] = reference_generate(merged, prompt, MAX_TOKENS)
        return folder, expected

    @functools.cache
    def case(architecture, path):
        folder, expected = written(architecture)
        directory, num_copies = tiny_model(architecture), len(ADAPTERS)
        model, backend = load_adaptable(directory, path, num_slots=NUM_SLOTS, max_rank=9, num_copies=num_copies)
        digests = {name: model.adapters.add(Path(folder, name)).digest for name in ADAPTERS}
        return Case(model, backend, {"": "", **digests}, expected)

    return case


def start(case, **settings):
    """Return an engine that knows the adapters."""
    slots = AdapterSlots(NUM_SLOTS)
    slots.note(case.model.adapters.infos, {})
    return make_engine(case.model, backend=case.backend, adapters=slots, **settings)


def add(engine, case, adapter, prompt, request_id):
    message = make_add(request_id, PROMPTS[prompt], max_tokens=MAX_TOKENS)
    assert engine.add(msgspec.structs.replace(message, adapter=case.digests[adapter])) is None


def run(case, **settings):
    """Return what each adapter says to each prompt when all are asked for at once."""
    engine = start(case, **settings)
    for adapter, prompt in case.expected:
        add(engine, case, adapter, prompt, f"{adapter}/{prompt}")
    told = finish(engine, {f"{adapter}/{prompt}": [] for adapter, prompt in case.expected})
    return {tuple(key.split("/")): tokens for key, tokens in told.items()}


@pytest.mark.parametrize(("architecture", "path"), PATHS)
def test_a_batch_that_mixes_adapters_says_what_merged_weights_say(case_of, architecture, path):
    """Three adapters and the base on two slots: who finds none waits, and the others go on."""
    case = case_of(architecture, path)
    assert run(case, seqs=6) == case.expected


@pytest.mark.parametrize("path", ["native", "lean", "transformers"])
@pytest.mark.parametrize(
    "settings", [{"tokens": 7}, {"num_blocks": 12, "host_blocks": 12}, {"num_blocks": 12}], ids=str
)
def test_chunks_and_preemption_change_no_token(case_of, path, settings):
    case = case_of("llama", path)
    assert run(case, **settings) == case.expected


def test_adapters_change_what_is_said(case_of):
    """Else equality would prove nothing."""
    expected = case_of("llama", "native").expected
    said = {str([expected[adapter, prompt] for prompt in PROMPTS]) for adapter in ("", *ADAPTERS)}
    assert len(said) == len(ADAPTERS) + 1


@pytest.mark.parametrize("path", ["native", "lean"])
def test_a_prefix_is_known_to_its_own_adapter_alone(case_of, path):
    case = case_of("llama", path)
    engine, name = start(case, caches=True), "3"
    for round_number in range(2):
        for adapter in ("", *ADAPTERS):
            add(engine, case, adapter, name, f"{adapter}/{round_number}")
            (tokens,) = finish(engine, {f"{adapter}/{round_number}": []}).values()
            assert tokens == case.expected[adapter, name]
    known = (len(PROMPTS[name]) - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert engine._scheduler.counters.prefix_hits == (1 + len(ADAPTERS)) * known
