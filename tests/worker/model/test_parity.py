"""Tokens equal transformers' greedy `generate` in float32: alone, batched, chunked, preempted, swapped, cached."""

from __future__ import annotations

import functools

import pytest
import torch
from transformers import AutoModelForCausalLM

from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.testing import ManualClock, make_add, make_report
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.loader import load
from dormouse_worker.model.runner import ModelRunner
from dormouse_worker.model.testing import ARCHITECTURES, MAX_POSITIONS, reference_generate
from tests.worker.engine.engine_kit import finish

EXPERTS = ["mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3"]
LEAN = ["cwm", "llama", "ministral", "mistral", "qwen2", "qwen3"]
PATHS = [*((name, "transformers") for name in ARCHITECTURES), *((name, "lean") for name in LEAN)]
each_path = pytest.mark.parametrize(("architecture", "impl"), PATHS)
SAMPLE = {  # of windows, positions, experts and latent attention one each; what engines do with others' blocks is slow
    ("llama", "lean"),
    ("llama", "transformers"),
    ("qwen3", "lean"),
    ("mistral", "transformers"),
    ("gemma2", "transformers"),
    ("gpt2", "transformers"),
    ("gpt_oss", "transformers"),
    ("deepseek_v3", "transformers"),
}
each_path_of_a_sample = pytest.mark.parametrize(
    ("architecture", "impl"), [pytest.param(*path, marks=() if path in SAMPLE else pytest.mark.slow) for path in PATHS]
)
CHUNKS = [  # of few tokens for all, so that each longer prompt is cut; of more for the sample
    pytest.param(*path, chunk, marks=() if chunk == 3 or path in SAMPLE else pytest.mark.slow)
    for path in PATHS
    for chunk in (3, 7)
]
BLOCK_SIZE = 4
MAX_TOKENS = 10
PROMPTS = {str(n): [(i * i * 7 + i * n + 3) % 250 for i in range(length)] for n, length in enumerate((1, 5, 17, 30))}
MANY = "0" * 5 + "1" * 5 + "2301" * 3  # of these: short ones first


class RunnerExecutor:
    """Lets the engine step over a model runner."""

    def __init__(self, runner):
        self.execute_model = runner.execute
        self.layer_windows = lambda: runner.cache.spec.windows


@pytest.fixture(scope="module")
def loaded(tiny_model):
    """Return a function (architecture, impl) → (loaded model, what transformers says to each prompt)."""

    @functools.cache
    def expected(architecture):
        directory = tiny_model(architecture)
        return {name: reference_generate(directory, prompt, MAX_TOKENS) for name, prompt in PROMPTS.items()}

    @functools.cache
    def load_both(architecture, impl="auto"):
        settings = EngineSettings(model=str(tiny_model(architecture)), block_size=BLOCK_SIZE, model_impl=impl)
        return load(settings, CpuDevice(Host())), expected(architecture)

    return load_both


def make_engine(model, *, num_blocks=64, seqs=4, tokens=256, host_blocks=0, caches=False, backend=None, adapters=None):
    cache, host_cache = (KVCache(model.cache_spec, count, torch.device("cpu")) for count in (num_blocks, host_blocks))
    runner = ModelRunner(model, cache, host_cache, backend or SdpaBackend(), max_num_seqs=seqs)
    size = model.cache_spec.block_size
    longest = min(MAX_POSITIONS, num_blocks * size)
    report = make_report(num_gpu_blocks=num_blocks, block_size=size, max_model_len=longest)
    settings = EngineSettings(model="m", max_num_seqs=seqs, max_num_batched_tokens=tokens, enable_prefix_caching=caches)
    counts, executor = (num_blocks, host_blocks), RunnerExecutor(runner)
    return build_engine(settings, report, counts, executor, clock=ManualClock(), adapters=adapters)


def run(engine, prompts, **sampling):
    """Run all prompts at once to their end; return {name: tokens}."""
    for name, prompt in prompts.items():
        assert engine.add(make_add(name, prompt, **{"max_tokens": MAX_TOKENS, **sampling})) is None
    return finish(engine, {name: [] for name in prompts})


def counters(engine):
    return engine._scheduler.counters


def crowd(model, expected, names=None, **settings):
    """Ask for prompts that do not fit together; return the engine, and whether each was answered as expected.

    Where every layer has a window only short ones ever grow.
    """
    names = names or (PROMPTS if None in model.cache_spec.windows else MANY)
    engine = make_engine(model, **{"num_blocks": 12, "seqs": len(names), "tokens": 2 * len(names), **settings})
    said = run(engine, {f"{place}": PROMPTS[name] for place, name in enumerate(names)})
    return engine, said == {f"{place}": expected[name] for place, name in enumerate(names)}


@each_path_of_a_sample
def test_each_prompt_alone(loaded, architecture, impl):
    model, expected = loaded(architecture, impl)
    engine = make_engine(model)
    assert {name: run(engine, {name: prompt})[name] for name, prompt in PROMPTS.items()} == expected


@each_path
def test_all_prompts_in_one_batch(loaded, architecture, impl):
    model, expected = loaded(architecture, impl)
    assert run(make_engine(model), PROMPTS) == expected


@pytest.mark.parametrize(("architecture", "impl", "chunk"), CHUNKS)
def test_prompts_in_chunks_mixed_with_decoding(loaded, architecture, impl, chunk):
    """A budget of a few tokens cuts every longer prompt, while those that came before it decode."""
    model, expected = loaded(architecture, impl)
    assert run(make_engine(model, tokens=chunk), PROMPTS) == expected


@each_path_of_a_sample
def test_arrivals_in_the_middle_of_others(loaded, architecture, impl):
    model, expected = loaded(architecture, impl)
    engine = make_engine(model, tokens=8)
    tokens = {name: [] for name in PROMPTS}
    for name, prompt in PROMPTS.items():
        engine.add(make_add(name, prompt, max_tokens=MAX_TOKENS))
        for _ in range(3):
            for output in engine.step().outputs:
                tokens[output.request_id] += output.token_ids
    assert finish(engine, tokens) == expected


@each_path_of_a_sample
def test_preempted_and_computed_anew(loaded, architecture, impl):
    model, expected = loaded(architecture, impl)
    engine, is_equal = crowd(model, expected)
    assert is_equal
    assert counters(engine).preemptions > 0


@each_path_of_a_sample
def test_preempted_to_host_memory_and_back(loaded, architecture, impl):
    model, expected = loaded(architecture, impl)
    engine, is_equal = crowd(model, expected, host_blocks=48)
    assert is_equal
    assert counters(engine).swaps == counters(engine).preemptions > 0


@each_path
def test_prompts_whose_beginning_is_in_the_cache(loaded, architecture, impl):
    """Each twice: the second time all full blocks but the last token's come from the cache."""
    model, expected = loaded(architecture, impl)
    engine = make_engine(model, tokens=9, caches=True)
    assert run(engine, PROMPTS) == expected
    before = counters(engine).prefix_hits
    assert run(engine, PROMPTS) == expected
    assert counters(engine).prefix_hits - before == sum(
        (len(p) - 1) // BLOCK_SIZE * BLOCK_SIZE for p in PROMPTS.values()
    )


@each_path_of_a_sample
def test_prompts_that_begin_alike_and_come_at_once(loaded, architecture, impl):
    """All but the first read, in each layer, what the first stores in the same pass."""
    model, expected = loaded(architecture, impl)
    alike = {f"{name} {copy}": prompt for copy in range(3) for name, prompt in PROMPTS.items()}
    engine = make_engine(model, num_blocks=128, seqs=len(alike), caches=True)
    assert run(engine, alike) == {name: expected[name.split()[0]] for name in alike}
    assert counters(engine).prefix_hits == 2 * sum((len(p) - 1) // BLOCK_SIZE * BLOCK_SIZE for p in PROMPTS.values())


@pytest.mark.parametrize("architecture", ["mistral", "gemma2", "gpt_oss"])
def test_models_with_windows_hold_fewer_blocks(loaded, architecture):
    model, expected = loaded(architecture)
    engine = make_engine(model, seqs=1, tokens=4)
    most = 0
    engine.add(make_add("3", PROMPTS["3"], max_tokens=MAX_TOKENS))
    tokens = []
    while (outputs := engine.step()) is not None:
        tokens += [token for output in outputs.outputs for token in output.token_ids]
        most = max(most, engine._scheduler.tables.pool.num_used)
    assert tokens == expected["3"]
    num_groups, blocks_of_all_tokens = len(model.cache_spec.groups), 10
    assert most < num_groups * blocks_of_all_tokens


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
@pytest.mark.parametrize("num_blocks", [64, 12])
def test_prompt_logprobs_equal_those_of_transformers(loaded, tiny_model, architecture, num_blocks):
    """In chunks of few rows, beside others, and again after a preemption."""
    model, _ = loaded(architecture)
    reference = AutoModelForCausalLM.from_pretrained(tiny_model(architecture), dtype=torch.float32).eval()
    engine = make_engine(model, tokens=16, seqs=16, num_blocks=num_blocks)
    for name, prompt in PROMPTS.items():
        engine.add(make_add(name, prompt, max_tokens=MAX_TOKENS, prompt_logprobs=2))
    told = {name: [] for name in PROMPTS}
    while (outputs := engine.step()) is not None:
        for output in outputs.outputs:
            told[output.request_id] += output.prompt_logprobs or []
    assert (counters(engine).preemptions > 0) == (num_blocks == 12 and architecture == "llama")
    for name, prompt in PROMPTS.items():
        with torch.inference_mode():
            expected = reference(torch.tensor([prompt])).logits[0].log_softmax(-1)
        assert len(told[name]) == len(prompt) - 1
        for position, logprobs in enumerate(told[name]):
            values, ids = expected[position].topk(2)
            assert logprobs.sampled == pytest.approx(expected[position, prompt[position + 1]].item(), abs=1e-4)
            assert logprobs.top_ids == ids.tolist()
            assert logprobs.top_logprobs == pytest.approx(values.tolist(), abs=1e-4)


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "mistral"])
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_any_block_size_says_the_same_in_chunks_crowded_and_cached(loaded, tiny_model, architecture, block_size):
    _, expected = loaded(architecture)
    settings = EngineSettings(model=str(tiny_model(architecture)), block_size=block_size)
    model = load(settings, CpuDevice(Host()))
    roomy = make_engine(model, num_blocks=256 // block_size, tokens=5, caches=True)
    assert run(roomy, PROMPTS) == run(roomy, PROMPTS) == expected
    assert counters(roomy).prefix_hits > 0
    for host_blocks in (0, 512 // block_size):
        few = {"num_blocks": -(-48 // block_size), "tokens": 64, "host_blocks": host_blocks}
        engine, is_equal = crowd(model, expected, MANY, **few)
        assert is_equal
        assert counters(engine).preemptions > 0
        assert (counters(engine).swaps > 0) == (host_blocks > 0)


@pytest.mark.parametrize(("architecture", "impl"), [("llama", "lean"), ("llama", "transformers"), ("gemma2", "auto")])
@pytest.mark.parametrize("host_blocks", [0, 12])
def test_a_seeded_request_says_the_same_after_a_preemption(loaded, architecture, impl, host_blocks):
    """With penalties, which look at the whole output: a sequence that comes back must bring it along."""
    model, _ = loaded(architecture, impl)
    random = {"temperature": 1.0, "seed": 4, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "top_p": 0.95}
    crowded = make_engine(model, num_blocks=12, tokens=8, host_blocks=host_blocks)
    together = run(crowded, PROMPTS, **random)
    assert counters(crowded).preemptions > 0
    assert (counters(crowded).swaps > 0) == (host_blocks > 0)
    alone = {name: run(make_engine(model), {name: prompt}, **random)[name] for name, prompt in PROMPTS.items()}
    assert together == alone


@pytest.mark.parametrize("architecture", EXPERTS)
def test_experts_compute_a_row_alike_whatever_rows_are_beside_it(loaded, architecture):
    """Which experts the neighbours choose decides how rows are grouped; it must not decide what comes out."""
    model, _ = loaded(architecture)
    experts = [part for name, part in model.module.named_modules() if name.endswith(".mlp")][-1]
    rows = torch.randn(1, 40, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        together, alone = (
            _first(experts(rows)),
            torch.cat([_first(experts(rows[:, i : i + 1])) for i in range(40)], dim=1),
        )
    assert together.std() > 1  # else closeness would say nothing
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


def _first(output):
    return output[0] if isinstance(output, tuple) else output


def test_a_seeded_request_says_the_same_whatever_runs_beside_it(loaded):
    """One random number per (seed, position): the batch has no part in it."""
    model, _ = loaded("llama")
    random = {"temperature": 1.0, "top_p": 0.9, "top_k": 40, "seed": 11}
    together = run(make_engine(model, tokens=7), PROMPTS, **random)
    alone = {name: run(make_engine(model), {name: prompt}, **random)[name] for name, prompt in PROMPTS.items()}
    assert together == alone
    assert together != run(make_engine(model), PROMPTS, **{**random, "seed": 12})


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_runs(tiny_model, dtype):
    settings = EngineSettings(model=str(tiny_model("llama")), block_size=BLOCK_SIZE, dtype=dtype)
    model = load(settings, CpuDevice(Host()))
    assert model.info.dtype == dtype
    assert all(len(tokens) == MAX_TOKENS for tokens in run(make_engine(model), PROMPTS).values())
