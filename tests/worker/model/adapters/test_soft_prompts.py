"""Soft prompts: tokens are peft's, beside LoRA and none, and no block of one is anybody else's. In float32."""

from __future__ import annotations

import functools

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.peft_kit import greedy_tokens, make_adapter, make_soft_prompt
from tests.worker.model.adapters.cases import each_of, make_case, peft_says
from tests.worker.model.test_parity import BLOCK_SIZE, MAX_TOKENS

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
each_path = each_of(PATHS)


def soft_prompts_of(architecture):
    return SOFT if architecture in ("gemma2", "gemma3_text", "ministral") else {**SOFT, **KEYS}


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
        return made, peft_says(base, made, PROMPTS)

    @functools.cache
    def case(architecture, path):
        return make_case(tiny_model(architecture), path, PROMPTS, *written(architecture), max_rank=4)

    return case


@each_path
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_batches_chunks_preemption_and_cached_prefixes_say_what_peft_says(case_of, architecture, path, settings):
    case = case_of(architecture, path)
    assert case.ask_twice(case.engine(**settings)) == [case.expected, case.expected]


@each_path
def test_each_adapter_says_something_else(case_of, architecture, path):
    """Else equality would prove nothing."""
    expected = case_of(architecture, path).expected
    names = ("", "lora", *soft_prompts_of(architecture))
    assert len({str(expected[name, "long"]) for name in names}) == len(names)


def say(engine, case, key, request_id, **sampling):
    """Return the answer to one request alone, why it ends, and how much of its own prompt was cached."""
    assert case.add(engine, key, request_id, **sampling) is None
    told = []
    while (outputs := engine.step()) is not None:
        told += outputs.outputs
    return [token for each in told for token in each.token_ids], told[-1].finish_reason, told[0].cached_tokens


def test_a_prefix_is_known_to_its_own_soft_prompt_alone(case_of):
    case = case_of("llama", "lean")
    engine = case.engine(caches=True)
    for number in range(2):
        told = {name: say(engine, case, (name, "long"), f"{name} {number}")[2] for name in ("", *SOFT, *KEYS)}
        expected = {"": 16, "tuned": 24 - 6, "encoded": 24 - 9, "block": 20 - BLOCK_SIZE, "keys": 24 - 7}
        assert told == (expected if number else dict.fromkeys(expected, 0))
    assert say(engine, case, ("encoded", "one"), "another first block")[2] == 0


def test_its_vectors_count_against_the_models_length(case_of):
    case = case_of("llama", "lean")
    engine = case.engine(num_blocks=7)  # 28 tokens
    tokens, reason, _ = say(engine, case, ("tuned", "long"), "r")
    assert (tokens, reason) == (case.expected["tuned", "long"][: 28 - 19 - 6], "length")
    why = case.add(engine, ("encoded", "long"), "too long")
    assert why == "prompt has 19 tokens behind 9 of its soft prompt; with one token of output the limit is 28"


def test_penalties_look_at_no_vector(case_of, tiny_model, tmp_path):
    case, base = case_of("llama", "lean"), tiny_model("llama")
    soft = make_soft_prompt(tmp_path, base, kind="PROMPT_TUNING", num_tokens=6)
    expected = greedy_tokens(base, soft, PROMPTS["long"], MAX_TOKENS, ignore_eos=True, repetition_penalty=1.7)
    assert expected != case.expected["tuned", "long"]
    assert say(case.engine(), case, ("tuned", "long"), "r", repetition_penalty=1.7)[0] == expected


@pytest.mark.parametrize("tokens", [256, 4])
def test_log_probabilities_are_told_of_the_prompts_own_tokens(case_of, tiny_model, tokens):
    """Of each but the first, which stands behind vectors alone: as without a soft prompt."""
    case = case_of("llama", "lean")
    engine = case.engine(tokens=tokens)
    assert case.add(engine, ("tuned", "long"), "r", prompt_logprobs=0) is None
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
    assert case.resume(case.engine(seqs=6), (adapter, "short")) == [whole] * len(whole)
