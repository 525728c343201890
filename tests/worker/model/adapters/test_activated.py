"""Activated LoRA: tokens are peft's, and what is before the invocation is shared with the base. In float32."""

from __future__ import annotations

import functools

import pytest
import torch
from peft import LoraConfig
from peft.tuners.lora.variants import calculate_alora_offsets

from dormouse_worker.common.adapters import AdapterInfo
from dormouse_worker.engine.invocation import activate
from tests.peft_kit import make_adapter
from tests.worker.engine.engine_kit import finish
from tests.worker.model.adapters.cases import each_of, make_case, peft_says
from tests.worker.model.test_parity import BLOCK_SIZE

INVOCATION = [201, 7, 201]
_TEXT = [(i * i * 7 + 3) % 200 for i in range(30)]
PROMPTS = {
    "begins": [*INVOCATION, *_TEXT[:6]],
    "within": [*_TEXT[:13], *INVOCATION, *_TEXT[13:18]],  # over the end of a block
    "twice": [*_TEXT[:5], *INVOCATION, *_TEXT[5:12], 7, *INVOCATION, 4],
    "overlaps": [*_TEXT[:6], *INVOCATION, *INVOCATION[1:], 9],
    "ends": [*_TEXT[:16], *INVOCATION],
    "absent": [*_TEXT[:20], *INVOCATION[:2]],
}
ADAPTERS = {  # rank, further fields
    "activated": (8, {"alora_invocation_tokens": INVOCATION}),
    "plain": (4, {}),
    "stable": (2, {"alora_invocation_tokens": INVOCATION[:1], "use_rslora": True, "targets": ["q_proj", "k_proj"]}),
}
PATHS = {  # architecture, who computes -> whether it is slow
    ("llama", "native"): False,
    ("llama", "lean"): False,
    ("qwen3", "native"): False,
    ("gemma3_text", "transformers"): False,
    ("qwen2", "native"): True,
    ("ministral", "lean"): True,
    ("llama", "transformers"): True,
}
SETTINGS = ({"seqs": 6}, {"tokens": 7}, {"num_blocks": 12, "host_blocks": 12}, {"num_blocks": 12}, {"caches": True})
each_path = each_of(PATHS)


@pytest.fixture(scope="module")
def case_of(tiny_model, tmp_path_factory):
    """Return a function (architecture, path) → Case."""

    @functools.cache
    def written(architecture):
        folder, base = tmp_path_factory.mktemp(architecture), tiny_model(architecture)
        made = {
            name: make_adapter(folder / name, base, rank=rank, **fields) for name, (rank, fields) in ADAPTERS.items()
        }
        return made, peft_says(base, made, PROMPTS)

    @functools.cache
    def case(architecture, path):
        return make_case(tiny_model(architecture), path, PROMPTS, *written(architecture), max_rank=8)

    return case


def say(engine, case, key, request_id):
    """Return the answer to one request alone, and how many of its tokens were cached."""
    assert case.add(engine, key, request_id) is None
    before = engine._scheduler.counters.prefix_hits
    (tokens,) = finish(engine, {request_id: []}).values()
    return tokens, engine._scheduler.counters.prefix_hits - before


@each_path
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_batches_chunks_preemption_and_cached_prefixes_say_what_peft_says(case_of, architecture, path, settings):
    case = case_of(architecture, path)
    assert case.ask_twice(case.engine(**settings)) == [case.expected, case.expected]


@each_path
def test_where_it_begins_changes_what_is_said(case_of, architecture, path):
    """Else equality would prove nothing."""
    expected = case_of(architecture, path).expected
    for prompt in PROMPTS:
        assert (expected["activated", prompt] == expected["", prompt]) is (prompt == "absent")


@each_path
def test_the_bases_blocks_serve_what_is_before_the_invocation(case_of, architecture, path):
    case = case_of(architecture, path)
    engine = case.engine(caches=True)
    for prompt in ("within", "twice", "ends"):
        begin = activate(case.infos["activated"], PROMPTS[prompt]).start
        say(engine, case, ("", prompt), f"{prompt} base")
        tokens, cached = say(engine, case, ("activated", prompt), prompt)
        assert (tokens, cached) == (case.expected["activated", prompt], begin // BLOCK_SIZE * BLOCK_SIZE)
        assert say(engine, case, ("", prompt), f"{prompt} again")[0] == case.expected["", prompt]


def test_what_it_computed_before_its_invocation_serves_the_base(case_of):
    case = case_of("llama", "native")
    engine = case.engine(caches=True)
    say(engine, case, ("activated", "within"), "first")
    tokens, cached = say(engine, case, ("", "within"), "base")
    assert (tokens, cached) == (case.expected["", "within"], 12)


def test_a_request_that_goes_on_elsewhere_after_any_token_says_the_rest(case_of):
    case = case_of("llama", "native")
    whole = case.expected["activated", "twice"]
    assert case.resume(case.engine(seqs=6), ("activated", "twice")) == [whole] * len(whole)


@pytest.mark.parametrize("invocation", [INVOCATION, INVOCATION[:1], [7], [255]], ids=str)
def test_it_begins_where_peft_says(invocation):
    configs = {"a": LoraConfig(task_type="CAUSAL_LM", alora_invocation_tokens=invocation)}
    info = AdapterInfo("a", 8, 1024, invocation=tuple(invocation))
    for ids in PROMPTS.values():
        (offset,) = calculate_alora_offsets(configs, "a", torch.tensor([ids]))
        assert activate(info, ids) == (("", 0) if offset is None else ("a", len(ids) - offset))
