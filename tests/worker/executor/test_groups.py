"""Ranks that share a model say what transformers' greedy `generate` says in float32, whatever happens on the way."""

import functools

import msgspec
import pytest

from dormouse_worker.common.commands import TAGS
from dormouse_worker.common.errors import Damaged, InvalidArgument, RankLost, WorkerError
from dormouse_worker.engine.testing import make_add
from dormouse_worker.executor.testing_groups import FakeGroupExecutor
from dormouse_worker.model.testing import EOS, VOCAB_SIZE, reference_generate, write_tiny_model
from tests.worker.engine.engine_kit import finish
from tests.worker.executor.grammar_kit import grammar, schema
from tests.worker.executor.group_kit import MAX_TOKENS, PROMPTS, counters, make_engine, run

MODELS = {  # architecture and settings
    "llama": ("llama", {"model_impl": "lean"}),
    "llama without kernels": ("llama", {"model_impl": "lean", "attention_backend": "sdpa"}),
    "llama through transformers": ("llama", {"model_impl": "transformers"}),
    "qwen3": ("qwen3", {"model_impl": "lean"}),
    "gemma2": ("gemma2", {}),
    "gpt2": ("gpt2", {}),
}
SHAPES = [(2, 1), (1, 2), (2, 2)]
GROUPS = [(model, shape) for model in MODELS for shape in SHAPES]
each_group = pytest.mark.parametrize(("model", "shape"), GROUPS, ids=str)
each_model_and_shape = (
    pytest.mark.parametrize(  # every shape of one model, every model in the largest; the rest is slow
        ("model", "shape"),
        [
            pytest.param(*group, marks=() if group[0] == "llama" or group[1] == (2, 2) else pytest.mark.slow)
            for group in GROUPS
        ],
        ids=str,
    )
)


@pytest.fixture(scope="module")
def directory_of(tmp_path_factory):
    """Return a function (architecture, **overrides) → directory of a tiny model."""

    @functools.cache
    def write(architecture, **overrides):
        return write_tiny_model(tmp_path_factory.mktemp(architecture), architecture, **overrides)

    return write


@pytest.fixture(scope="module")
def group_of(directory_of):
    """Return a function (name in MODELS, (T, P)) → (group, what transformers says to each prompt)."""
    made = []

    @functools.cache
    def expected(directory):
        return {name: reference_generate(directory, prompt, MAX_TOKENS) for name, prompt in PROMPTS.items()}

    @functools.cache
    def make(model, shape):
        architecture, settings = MODELS[model]
        directory = directory_of(architecture)
        made.append(FakeGroupExecutor(directory, *shape, **settings))
        return made[-1], expected(directory)

    yield make
    for group in made:
        group.shutdown()


@each_group
def test_all_prompts_in_one_batch(group_of, model, shape):
    group, expected = group_of(model, shape)
    assert run(make_engine(group), PROMPTS) == expected


@each_model_and_shape
def test_prompts_in_chunks_mixed_with_decoding(group_of, model, shape):
    group, expected = group_of(model, shape)
    assert run(make_engine(group, tokens=7), PROMPTS) == expected


def test_with_right_and_wrong_drafts(group_of):
    group, expected = group_of("llama", (2, 2))
    engine = make_engine(group, max_num_seqs=16, speculation_method="ngram")
    for name, prompt in PROMPTS.items():
        predicted = [*expected[name][:6], 3, *expected[name][7:]]
        added = make_add(name, prompt, max_tokens=MAX_TOKENS)
        assert engine.add(msgspec.structs.replace(added, prediction_token_ids=predicted)) is None
    told = list(iter(engine.step, None))
    for name, tokens in expected.items():
        assert [
            token for step in told for one in step.outputs if one.request_id == name for token in one.token_ids
        ] == (tokens)
    assert sum(sum(step.drafts.num_accepted_tokens_per_pos) for step in told if step.drafts) > 0


@each_model_and_shape
def test_prompts_whose_beginning_is_in_the_cache(group_of, model, shape):
    group, expected = group_of(model, shape)
    engine = make_engine(group, tokens=9, caches=True)
    assert run(engine, PROMPTS) == expected
    before = counters(engine).prefix_hits
    assert run(engine, PROMPTS) == expected
    assert counters(engine).prefix_hits > before


@each_model_and_shape
@pytest.mark.parametrize("host_blocks", [0, 12])
def test_preempted_and_computed_anew_or_swapped(group_of, model, shape, host_blocks):
    group, expected = group_of(model, shape)
    engine = make_engine(group, num_blocks=12, tokens=8, host_blocks=host_blocks)
    assert run(engine, PROMPTS) == expected
    assert counters(engine).preemptions > 0
    assert (counters(engine).swaps > 0) == (host_blocks > 0)


@each_model_and_shape
@pytest.mark.parametrize("level", [1, 2])
def test_after_a_sleep(group_of, model, shape, level):
    group, expected = group_of(model, shape)
    engine = make_engine(group)
    group.sleep(level, TAGS)
    group.wake_up(TAGS)
    assert run(engine, PROMPTS) == expected


@pytest.mark.parametrize(
    ("architecture", "overrides", "shape", "impl"),
    [
        ("llama", {}, (4, 1), "lean"),
        ("llama", {}, (4, 1), "transformers"),
        ("llama", {"num_key_value_heads": 1}, (2, 1), "lean"),
        ("llama", {"vocab_size": VOCAB_SIZE + 1}, (2, 1), "lean"),
        ("gemma2", {"vocab_size": VOCAB_SIZE + 1}, (4, 1), "auto"),
        ("gpt2", {"vocab_size": VOCAB_SIZE + 1}, (2, 2), "auto"),
        ("llama", {"tie_word_embeddings": True}, (2, 2), "lean"),
        ("llama", {"attention_bias": True, "mlp_bias": True}, (2, 1), "lean"),
        ("llama", {"attention_bias": True, "mlp_bias": True}, (2, 1), "transformers"),
        ("qwen2", {"num_hidden_layers": 5}, (1, 3), "lean"),
        ("ministral", {}, (1, 2), "lean"),
        ("cohere2", {}, (2, 1), "auto"),
        ("starcoder2", {}, (2, 2), "auto"),
        ("phi3", {}, (2, 2), "auto"),
        ("olmo2", {}, (2, 1), "auto"),
    ],
    ids=str,
)
def test_other_shapes_and_models(directory_of, architecture, overrides, shape, impl):
    directory = directory_of(architecture, **overrides)
    group = FakeGroupExecutor(directory, *shape, model_impl=impl)
    tokens = run(make_engine(group, tokens=7), PROMPTS)
    group.shutdown()
    assert tokens == {name: reference_generate(directory, prompt, MAX_TOKENS) for name, prompt in PROMPTS.items()}


@pytest.mark.parametrize("shape", SHAPES)
def test_random_sampling_with_penalties_and_logprobs_is_that_of_one_rank(group_of, shape):
    """Penalties look at the whole output: the rank that samples learns it like the others."""
    random = {"temperature": 1.0, "seed": 4, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "top_p": 0.95}
    alone, _ = group_of("llama", (1, 1))
    group, _ = group_of("llama", shape)
    assert run(make_engine(group), PROMPTS, **random) == run(make_engine(alone), PROMPTS, **random)


@pytest.mark.parametrize("shape", SHAPES)
def test_prompt_logprobs_are_those_of_one_rank(group_of, shape):
    told = []
    for group in (group_of("llama", (1, 1))[0], group_of("llama", shape)[0]):
        engine = make_engine(group, tokens=16)
        engine.add(make_add("3", PROMPTS["3"], max_tokens=2, prompt_logprobs=2))
        told.append([])
        while (outputs := engine.step()) is not None:
            told[-1] += [row for output in outputs.outputs for row in output.prompt_logprobs or []]
    alone, together = told
    assert len(alone) == len(PROMPTS["3"]) - 1
    assert [row.top_ids for row in together] == [row.top_ids for row in alone]
    assert [row.sampled for row in together] == pytest.approx([row.sampled for row in alone], abs=1e-4)


def test_a_rank_holds_its_share_alone(group_of):
    alone, _ = group_of("llama", (1, 1))
    whole = alone.workers[0]._loaded()
    for shape, num_layers, num_kv_heads in (((2, 1), 2, 1), ((1, 2), 1, 2), ((2, 2), 1, 1)):
        group, _ = group_of("llama", shape)
        for worker in group.workers:
            model = worker._loaded()
            assert len(model.cache_spec.layers) == num_layers
            assert {layer.num_kv_heads for layer in model.cache_spec.layers} == {num_kv_heads}
            assert model.cache_spec.block_bytes * len(group.workers) == whole.cache_spec.block_bytes
            assert model.weights_bytes < 0.62 * whole.weights_bytes
            assert model.info.num_parameters == whole.info.num_parameters


@pytest.mark.parametrize("model", ["llama", "gpt2"])
def test_every_rank_reports_its_own_memory_without_the_others(group_of, model):
    group, _ = group_of(model, (2, 2))
    for worker in group.workers:
        worker.determine_num_available_blocks()
        assert worker.get_memory_report().rank == worker.rank
    assert group.group.num_sent == 0 or group.group.lines[2].empty()


def test_a_rank_whose_memory_is_damaged_says_so_and_no_other_waits_for_ever(directory_of):
    group = FakeGroupExecutor(directory_of("llama"), 2, 1)
    group.initialize_cache(40, 0)
    group.sleep(1, TAGS)
    group.workers[1]._model.module.model.layers[0].mlp.down_proj.weight.data += 1
    with pytest.raises(Damaged):
        group.wake_up(TAGS)
    group.shutdown()


def test_a_rank_that_does_not_come_is_an_error_of_the_others(directory_of):
    group = FakeGroupExecutor(directory_of("llama"), 1, 2)
    group.group.timeout_s = 0.05
    with pytest.raises(RankLost, match=r"rank 1: barrier was not answered within 0\.05 s"):
        group.workers[1].initialize_cache(40, 0)
    group.shutdown()


@pytest.mark.parametrize("model", ["llama", "gemma2", "gpt2"])
def test_random_weights_are_those_of_one_rank(directory_of, model):
    told = []
    for shape in ((1, 1), (2, 2)):
        group = FakeGroupExecutor(directory_of(model), *shape, load_format="dummy")
        told.append(run(make_engine(group), PROMPTS))
        group.shutdown()
    assert told[0] == told[1]


@pytest.mark.parametrize("model", ["llama", "gemma2", "gpt2"])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_a_group_saved_such_a_group_loads(group_of, tmp_path, model, shape):
    group, expected = group_of(model, shape)
    make_engine(group)
    group.save_sharded_state(tmp_path / "saved")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["saved"]
    loaded = FakeGroupExecutor(tmp_path / "saved", *shape, load_format="sharded_state")
    engine = make_engine(loaded)
    loaded.sleep(2, TAGS)
    loaded.wake_up(TAGS)
    assert run(engine, PROMPTS) == expected
    loaded.shutdown()


def test_a_wake_that_one_rank_can_not_do_is_taken_back_by_all(directory_of, tmp_path):
    """And can be tried again: what the ranks share is not broken by it."""
    directory, saved = directory_of("llama"), tmp_path / "saved"
    group = FakeGroupExecutor(directory, 2, 1)
    group.initialize_cache(40, 0)
    group.save_sharded_state(saved)
    group.shutdown()
    group = FakeGroupExecutor(saved, 2, 1, load_format="sharded_state")
    engine = make_engine(group)
    group.sleep(2, TAGS)
    (saved / "dormouse-rank-1-of-2.safetensors").rename(tmp_path / "away")
    told = group.group.run(lambda rank: error_of(lambda: group.workers[rank].wake_up(TAGS)))
    assert told[0] == "PeerFailed: wake_up is taken back here: rank 1 could not do it, and says why"
    assert told[1].startswith("ModelInvalid: ")
    assert [worker._allocation.sleeping_tags for worker in group.workers] == [TAGS, TAGS]
    (tmp_path / "away").rename(saved / "dormouse-rank-1-of-2.safetensors")
    group.wake_up(TAGS)
    assert run(engine, {"3": PROMPTS["3"]})["3"] == reference_generate(directory, PROMPTS["3"], MAX_TOKENS)
    group.shutdown()


def error_of(work):
    """Return what it raises, as reason and message."""
    try:
        work()
    except WorkerError as error:
        return f"{error.reason}: {error}"
    return ""


def test_a_save_that_one_rank_can_not_finish_leaves_nothing(group_of, tmp_path):
    group, _ = group_of("llama", (2, 1))
    make_engine(group)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "precious").touch()
    with pytest.raises(InvalidArgument, match="nothing is overwritten"):
        group.save_sharded_state(tmp_path / "saved")
    assert [file.name for file in tmp_path.rglob("*")] == ["saved", "precious"]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_group_keeps_to_a_grammar_with_the_tokens_of_one_rank(directory_of, group_of, shape):
    bound_by = {"a": schema({"enum": ["red", "green", "blue"]}), "b": grammar("regex", "[a-z]{3,9}!")}
    asked = {"temperature": 1.0, "seed": 5, "max_tokens": MAX_TOKENS, "stop_token_ids": (EOS,)}
    said = []
    for executor in (FakeGroupExecutor(directory_of("llama"), 1, 1, model_impl="lean"), group_of("llama", shape)[0]):
        engine = make_engine(executor)
        for name, one in bound_by.items():
            assert engine.add(make_add(name, PROMPTS["2"], grammar=one, **asked)) is None
        assert engine.add(make_add("c", PROMPTS["1"], **asked)) is None
        said.append(finish(engine, {name: [] for name in (*bound_by, "c")}))
    assert said[0] == said[1]
    assert said[0]["a"][-1] == EOS
