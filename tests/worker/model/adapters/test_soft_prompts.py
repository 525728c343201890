"""Soft prompts: tokens are peft's, beside LoRA and none, and no block of one is anybody else's. In float32."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from dormouse_worker.common.adapters import AdapterInfo
from dormouse_worker.engine.adapters import AdapterSlots
from dormouse_worker.engine.testing import make_add
from tests.peft_kit import greedy_tokens, make_adapter, make_soft_prompt
from tests.worker.engine.engine_kit import finish
from tests.worker.model.adapters.loading import load_adaptable
from tests.worker.model.test_parity import BLOCK_SIZE, MAX_TOKENS, make_engine

_TEXT = [(i * i * 7 + 3) % 200 for i in range(30)]
PROMPTS = {"one": _TEXT[:1], "short": _TEXT[:6], "long": _TEXT[:19]}
SOFT = {"tuned": ("PROMPT_TUNING", 6), "encoded": ("P_TUNING", 9), "block": ("PROMPT_TUNING", BLOCK_SIZE)}
KEYS = {"keys": ("PREFIX_TUNING", 7)}  # only where no layer forgets what is behind a window
PATHS = {  # architecture, who computes -> whether it is slow
    ("llama", "native"): False,
    ("gemma3_text", "transformers"): False,
    ("llama", "lean"): True,
    ("qwen3", "native"): True,
    ("ministral", "lean"): True,
    ("gemma2", "transformers"): True,
    ("phi", "transformers"): True,
}
SETTINGS = ({"seqs": 6}, {"tokens": 5}, {"num_blocks": 12, "host_blocks": 12}, {"num_blocks": 12}, {"caches": True})
each_path = pytest.mark.parametrize(
    ("architecture", "path"), [pytest.param(*key, marks=[pytest.mark.slow] * slow) for key, slow in PATHS.items()]
)


def soft_prompts_of(architecture):
    return SOFT if architecture in ("gemma2", "gemma3_text", "ministral") else {**SOFT, **KEYS}


class Case(NamedTuple):
    """A model with adapters, and what peft says with each."""

    model: object
    backend: object
    infos: dict[str, AdapterInfo]
    folders: dict[str, Path]
    expected: dict[tuple[str, str], list[int]]  # adapter ("" = the base) and prompt -> tokens


@pytest.fixture(scope="module")
def case_of(tiny_model, tmp_path_factory):
    """Return a function (architecture, path) → Case."""

    @functools.cache
    def written(architecture):
        folder, base = tmp_path_factory.mktemp(architecture), tiny_model(architecture)
        made = {
            name: make_soft_prompt(folder / name, base, kind=kind, num_tokens=num_tokens)
            for name, (kind, num_tokens) in soft_prompts_of(architecture).items()
        }
        made["lora"] = make_adapter(folder / "lora", base, rank=4)
        return made, {
            (name, prompt): greedy_tokens(base, made.get(name), ids, MAX_TOKENS, ignore_eos=True)
            for name in ("", *made)
            for prompt, ids in PROMPTS.items()
        }

    @functools.cache
    def case(architecture, path):
        made, expected = written(architecture)
        model, backend = load_adaptable(tiny_model(architecture), path, num_slots=2, max_rank=4, num_copies=len(made))
        return Case(model, backend, {name: model.adapters.add(each) for name, each in made.items()}, made, expected)

    return case


def engine_of(case, **settings):
    """Return an engine that knows the adapters, with fewer slots than there are."""
    slots = AdapterSlots(2)
    slots.note(case.model.adapters.infos, {})
    return make_engine(case.model, backend=case.backend, adapters=slots, **settings)


def add(engine, case, key, request_id, output_token_ids=(), **sampling):
    adapter, prompt = key
    message = make_add(request_id, PROMPTS[prompt], **{"max_tokens": MAX_TOKENS, **sampling})
    digest = case.infos[adapter].digest if adapter else ""
    return engine.add(msgspec.structs.replace(message, adapter=digest, output_token_ids=list(output_token_ids)))


@each_path
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_batches_chunks_preemption_and_cached_prefixes_say_what_peft_says(case_of, architecture, path, settings):
    case = case_of(architecture, path)
    engine = engine_of(case, **settings)
    for round_number in range(2):
        for key in case.expected:
            assert add(engine, case, key, f"{'/'.join(key)}/{round_number}") is None
        told = finish(engine, {f"{'/'.join(key)}/{round_number}": [] for key in case.expected})
        assert {tuple(name.split("/")[:2]): tokens for name, tokens in told.items()} == case.expected


@each_path
def test_each_adapter_says_something_else(case_of, architecture, path):
    """Else equality would prove nothing."""
    expected = case_of(architecture, path).expected
    names = ("", "lora", *soft_prompts_of(architecture))
    assert len({str(expected[name, "long"]) for name in names}) == len(names)


def say(engine, case, key, request_id, **sampling):
    """Return the answer to one request alone, why it ends, and how much of its own prompt was cached."""
    assert add(engine, case, key, request_id, **sampling) is None
    told = []
    while (outputs := engine.step()) is not None:
        told += outputs.outputs
    return [token for each in told for token in each.token_ids], told[-1].finish_reason, told[0].cached_tokens


def test_a_prefix_is_known_to_its_own_soft_prompt_alone(case_of):
    case = case_of("llama", "lean")
    engine = engine_of(case, caches=True)
    for number in range(2):
        told = {name: say(engine, case, (name, "long"), f"{name} {number}")[2] for name in ("", *SOFT, *KEYS)}
        expected = {"": 16, "tuned": 24 - 6, "encoded": 24 - 9, "block": 20 - BLOCK_SIZE, "keys": 24 - 7}
        assert told == (expected if number else dict.fromkeys(expected, 0))
    assert say(engine, case, ("encoded", "one"), "another first block")[2] == 0


def test_its_vectors_count_against_the_models_length(case_of):
    case = case_of("llama", "lean")
    engine = engine_of(case, num_blocks=7)  # 28 tokens
    tokens, reason, _ = say(engine, case, ("tuned", "long"), "r")
    assert (tokens, reason) == (case.expected["tuned", "long"][: 28 - 19 - 6], "length")
    why = add(engine, case, ("encoded", "long"), "too long")
    assert why == "prompt has 19 tokens behind 9 of its soft prompt; with one token of output the limit is 28"


def test_penalties_look_at_no_vector(case_of, tiny_model, tmp_path):
    case, base = case_of("llama", "lean"), tiny_model("llama")
    soft = make_soft_prompt(tmp_path, base, kind="PROMPT_TUNING", num_tokens=6)
    expected = greedy_tokens(base, soft, PROMPTS["long"], MAX_TOKENS, ignore_eos=True, repetition_penalty=1.7)
    assert expected != case.expected["tuned", "long"]
    assert say(engine_of(case), case, ("tuned", "long"), "r", repetition_penalty=1.7)[0] == expected


@pytest.mark.parametrize("tokens", [256, 4])
def test_log_probabilities_are_told_of_the_prompts_own_tokens(case_of, tiny_model, tokens):
    """Of each but the first, which stands behind vectors alone: as without a soft prompt."""
    case = case_of("llama", "lean")
    engine = engine_of(case, tokens=tokens)
    assert add(engine, case, ("tuned", "long"), "r", prompt_logprobs=0) is None
    told = []
    while (outputs := engine.step()) is not None:
        told += [row for each in outputs.outputs for row in each.prompt_logprobs or ()]
    model = AutoModelForCausalLM.from_pretrained(tiny_model("llama"), dtype=torch.float32)
    vectors = load_file(case.folders["tuned"] / "adapter_model.safetensors")["prompt_embeddings"]
    ids = torch.tensor(PROMPTS["long"])
    with torch.no_grad():
        logits = model(inputs_embeds=torch.cat([vectors, model.get_input_embeddings()(ids)])[None]).logits[0]
    rows = logits[6:-1].log_softmax(-1)[torch.arange(18), ids[1:]].tolist()
    assert [row.sampled for row in told] == pytest.approx(rows, abs=1e-4)


@pytest.mark.parametrize("adapter", ["encoded", "keys"])
def test_a_request_that_goes_on_elsewhere_after_any_token_says_the_rest(case_of, adapter):
    case = case_of("llama", "native")
    whole = case.expected[adapter, "short"]
    engine = engine_of(case, seqs=6)
    for cut in range(len(whole)):
        assert add(engine, case, (adapter, "short"), f"{cut}", whole[:cut]) is None
    told = finish(engine, {f"{cut}": [] for cut in range(len(whole))})
    assert told == {f"{cut}": whole[cut:] for cut in range(len(whole))}
