"""What is computed without torch is what an engine with torch computes by the same kernels, bit for bit."""

from __future__ import annotations

import msgspec
import pytest

from dormouse_worker.engine.batch import NewSequence, single
from dormouse_worker.engine.testing import make_sampling
from dormouse_worker.executor.testing import generate, make_settings, make_worker, start
from dormouse_worker.executor.worker.bare_worker import BareWorker

MIB = 1 << 20
SLOWER = {"rope_type": "linear", "rope_theta": 1e6, "factor": 3.0}
LLAMA3 = {  # of a model so small that its waves are short, between and long, too
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS = {
    "llama": ("llama", "float32", {}),
    "llama, bfloat16": ("llama", "bfloat16", {}),
    "wide heads, positions of Llama 3.1": (
        "llama",
        "float32",
        {"head_dim": 128, "rope_parameters": LLAMA3},
    ),
    "8 bits, tied": ("qwen2", "bfloat16", {"tie_word_embeddings": True}, "int8"),
    "4 bits": ("qwen3", "float32", {"head_dim": 16}, "int4"),
    "a window": ("mistral", "bfloat16", {}),
    "a cache of 8 bits": ("qwen3", "bfloat16", {"head_dim": 32}, "none", "int8"),
    "8 bits of everything": ("mistral", "float32", {}, "int8", "fp8"),
    "biases, tied, slower positions": ("qwen2", "bfloat16", {"tie_word_embeddings": True, "rope_parameters": SLOWER}),
    "head norms": ("qwen3", "float32", {"head_dim": 16}),
}
WISHES = (
    {"temperature": 0.0, "logprobs": 5, "prompt_logprobs": 3, "logprob_token_ids": (4, 9)},
    {"temperature": 0.9, "top_p": 0.8, "top_k": 40, "min_p": 0.01, "seed": 3},
    {"temperature": 0.7, "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2, "seed": 4},
    {"temperature": 0.8, "logit_bias": {45: 4.0, 46: 3.0, 10**6: 1.0}, "logprobs": 0, "seed": 5},
    {"temperature": 0.9, "bad_words_token_ids": ((41,), (42, 43)), "presence_penalty": 0.5, "seed": 6},
    {"temperature": 0.5, "allowed_token_ids": (40, 41, 42, 10**6), "seed": 7},
    {"temperature": 1.0, "allowed_token_ids": (42,), "stop_token_ids": (42,), "min_tokens": 9, "seed": 8},
)


@pytest.fixture(scope="module", params=MODELS)
def pair(request, model_of):
    """Return a worker with torch and one without, of one model."""
    architecture, dtype, overrides, *rounded = MODELS[request.param]
    quantization, cached = [*rounded, *("none", "auto")[len(rounded) :]]
    fields = {"kv_cache_memory_bytes": MIB, "quantization": quantization, "kv_cache_dtype": cached}
    settings = make_settings(model_of(architecture, dtype, **overrides), **fields)
    workers = make_worker(settings.model_path, **fields), BareWorker(settings, 0)
    workers[1].init_device()
    for worker in workers:
        start(worker)
    assert workers[0].get_model_info().compute_path.startswith("native ")
    yield workers
    for worker in workers:
        worker.shutdown()


def test_tokens_and_log_probabilities_are_the_same_whatever_is_asked(pair):
    table = (list(range(3, 9)),) * len(pair[0].layer_windows())
    for wish in WISHES:
        sequence = NewSequence("r", [*range(20, 36)], [50, 41, 42], make_sampling(**wish))
        with_torch, without = (msgspec.to_builtins(worker.execute_model(single(sequence, table))) for worker in pair)
        assert without == with_torch


def test_so_is_what_follows_one_token_after_the_other(pair):
    for wish in WISHES[:3]:
        with_torch, without = (generate(worker, range(30, 39), 12, **wish) for worker in pair)
        assert without == with_torch


def test_so_is_what_status_and_stores_are_told(pair):
    infos = [msgspec.structs.replace(worker.get_model_info(), load_seconds=0.0, compute_path="") for worker in pair]
    assert infos[0] == msgspec.structs.replace(infos[1], load_bytes=infos[0].load_bytes)  # frequencies are loaded
    assert pair[0]._golden.facts == pair[1]._golden.facts
    assert pair[1].get_model_info().compute_path == pair[0].get_model_info().compute_path + ", without torch"
    ours, theirs = (dict(worker._model.weights.checksums) for worker in pair[::-1])
    assert ours.items() <= theirs.items()


def test_blocks_that_one_stored_are_those_of_the_other(pair):
    blocks = [worker.stored_cache() for worker in pair]
    for worker in pair:
        generate(worker, range(30, 50))
    stored = [[bytes(block) for block in each.read_blocks([3, 5])] for each in blocks]
    assert stored[0] == stored[1]
    blocks[1].write_blocks([7, 6], memoryview(b"".join(stored[0])))
    assert [bytes(block) for block in blocks[1].read_blocks([7, 6])] == stored[0]
