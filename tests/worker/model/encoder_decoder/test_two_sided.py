"""Models whose prompts an encoder reads say what transformers' greedy `generate` says, whoever is beside them."""

import functools

import pytest
import torch
from msgspec.structs import replace
from transformers import AutoModelForSeq2SeqLM

from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.sides import joined
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.testing import ManualClock, make_add, make_report
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.loader import load
from dormouse_worker.model.runner import ModelRunner
from dormouse_worker.model.testing_sides import TWO_SIDED, answers_of, write_two_sided
from tests.worker.engine.engine_kit import finish
from tests.worker.model.test_parity import RunnerExecutor

BLOCK_SIZE = 4
MAX_TOKENS = 9
PROMPTS = {str(n): [(i * i * 7 + i * n + 3) % 250 for i in range(length)] for n, length in enumerate((1, 4, 17, 30))}
PENALTY = {"repetition_penalty": 1.5}  # tiny models repeat themselves
each = pytest.mark.parametrize("architecture", [*TWO_SIDED])


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    """Return a function that writes each architecture once."""

    @functools.cache
    def written(architecture):
        generation = {"encoder_no_repeat_ngram_size": 0}
        if architecture == "mbart":
            generation |= {"forced_bos_token_id": 77}
        return write_two_sided(tmp_path_factory.mktemp(architecture), architecture, generation=generation)

    return written


@pytest.fixture(scope="module")
def loaded(write):
    """Return a function architecture → (loaded model, what transformers answers)."""

    @functools.cache
    def made(architecture):
        directory = write(architecture)
        model = load(EngineSettings(model=str(directory), block_size=BLOCK_SIZE), CpuDevice(Host()))
        answers = answers_of(directory, list(PROMPTS.values()), MAX_TOKENS, **PENALTY)
        return model, dict(zip(PROMPTS, answers, strict=True))

    return made


def make_engine(model, *, num_blocks=80, seqs=4, tokens=256, host_blocks=0, caches=True):
    cache, host_cache = (KVCache(model.cache_spec, count, torch.device("cpu")) for count in (num_blocks, host_blocks))
    runner = ModelRunner(model, cache, host_cache, SdpaBackend(), max_num_seqs=seqs)
    longest = min(model.max_model_len, num_blocks * BLOCK_SIZE)
    report = make_report(num_gpu_blocks=num_blocks, block_size=BLOCK_SIZE, max_model_len=longest)
    settings = EngineSettings(model="m", max_num_seqs=seqs, max_num_batched_tokens=tokens, enable_prefix_caching=caches)
    counts, executor = (num_blocks, host_blocks), RunnerExecutor(runner)
    return build_engine(settings, report, counts, executor, clock=ManualClock())


def ask(engine, model, name, prompt, *, outputs=(), **sampling):
    message = make_add(name, joined(prompt, model.sides.opening, BLOCK_SIZE), **{"max_tokens": MAX_TOKENS, **sampling})
    assert engine.add(replace(message, output_token_ids=[*outputs], num_source_tokens=len(prompt))) is None


def run(engine, model, prompts, **sampling):
    for name, prompt in prompts.items():
        ask(engine, model, name, prompt, **{**PENALTY, **sampling})
    return finish(engine, {name: [] for name in prompts})


@each
def test_answers_are_those_of_transformers_alone_and_in_one_batch(loaded, architecture):
    model, expected = loaded(architecture)
    engine = make_engine(model)
    for name, prompt in PROMPTS.items():
        assert run(engine, model, {name: prompt}) == {name: expected[name]}
    assert run(make_engine(model), model, PROMPTS) == expected


@each
def test_answers_survive_preemption_by_recompute_and_by_swap(loaded, architecture):
    model, expected = loaded(architecture)
    for host_blocks in (0, 30):
        engine = make_engine(model, num_blocks=19, host_blocks=host_blocks)
        assert run(engine, model, PROMPTS) == expected
        assert engine._scheduler.counters.preemptions
        assert bool(engine._scheduler.counters.swaps) == bool(host_blocks)


@each
def test_log_probabilities_are_those_of_transformers(write, loaded, architecture):
    model, _ = loaded(architecture)
    engine, told = make_engine(model), []
    ask(engine, model, "a", PROMPTS["2"], logprobs=0)
    while (outputs := engine.step()) is not None:
        told += [
            (token, each.sampled)
            for out in outputs.outputs
            for token, each in zip(out.token_ids, out.logprobs, strict=True)
        ]
    reference = AutoModelForSeq2SeqLM.from_pretrained(write(architecture), dtype=torch.float32).eval()
    decoder = torch.tensor([[*model.sides.opening, *(token for token, _ in told)]])
    with torch.inference_mode():
        logits = reference(input_ids=torch.tensor([PROMPTS["2"]]), decoder_input_ids=decoder).logits[0]
    rows = torch.log_softmax(logits[len(model.sides.opening) - 1 : -1], dim=-1)
    wanted = [float(row[token]) for row, (token, _) in zip(rows, told, strict=True)]
    assert [value for _, value in told] == pytest.approx(wanted, abs=2e-5)


@pytest.fixture(scope="module")
def t5(loaded):
    return loaded("t5")


def cached(engine, model, name, prompt):
    """Return what is said, and how many tokens of the prompt were known."""
    ask(engine, model, name, prompt, **PENALTY)
    first = engine.step().outputs[0]
    rest = finish(engine, {name: []})[name]
    return first.token_ids + rest, first.cached_tokens


def test_equal_sources_are_encoded_once_and_others_share_nothing(t5):
    model, expected = t5
    engine = make_engine(model)
    assert cached(engine, model, "a", PROMPTS["2"]) == (expected["2"], 0)
    assert cached(engine, model, "b", PROMPTS["2"]) == (expected["2"], len(PROMPTS["2"]))
    said, num_known = cached(engine, model, "c", [*PROMPTS["2"][:-1], 9])
    assert num_known == 0, "every state of the encoder depends on the whole source"
    assert said != expected["2"]
    assert cached(engine, model, "d", PROMPTS["2"][:16])[1] == 0, "the same blocks, but another end"


def test_a_source_of_which_a_part_was_forgotten_is_encoded_anew(t5):
    model, expected = t5
    engine = make_engine(model, num_blocks=12)
    assert cached(engine, model, "a", PROMPTS["2"]) == (expected["2"], 0)
    assert run(engine, model, {"b": PROMPTS["0"], "c": PROMPTS["1"]}) == {"b": expected["0"], "c": expected["1"]}
    assert cached(engine, model, "d", PROMPTS["2"]) == (expected["2"], 0)


def test_a_source_is_read_in_one_pass_and_waits_for_room_in_it(t5):
    model, expected = t5
    engine = make_engine(model, tokens=32)
    assert run(engine, model, PROMPTS) == expected
    message = make_add("a", joined(PROMPTS["3"], model.sides.opening, BLOCK_SIZE))
    assert make_engine(model, tokens=31).add(replace(message, num_source_tokens=30)) == (
        "the source takes 32 tokens of one pass; the limit is 31"
    )


@pytest.mark.parametrize("num_known", [1, 5, MAX_TOKENS - 1])
def test_an_answer_goes_on_elsewhere_after_any_token(t5, num_known):
    model, expected = t5
    engine = make_engine(model)
    ask(engine, model, "a", PROMPTS["3"], outputs=expected["3"][:num_known], **PENALTY)
    assert finish(engine, {"a": []}) == {"a": expected["3"][num_known:]}


def test_sampled_choices_of_one_source_are_the_same_alone(t5):
    model, _ = t5
    sampling = {"temperature": 1.0, "seed": 5}
    prompts = dict.fromkeys("abc", PROMPTS["2"])
    together, engine = {}, make_engine(model)
    for index, (name, prompt) in enumerate(prompts.items()):
        ask(engine, model, name, prompt, choice_index=index, **sampling)
    together = finish(engine, {name: [] for name in prompts})
    assert len({*map(tuple, together.values())}) == len(prompts)
    for index, (name, prompt) in enumerate(prompts.items()):
        alone = make_engine(model)
        ask(alone, model, name, prompt, choice_index=index, **sampling)
        assert finish(alone, {name: []}) == {name: together[name]}
