"""Ranks that share a model say what peft says in float32, with an adapter, without one, and after every sleep."""

from __future__ import annotations

import functools

import msgspec
import pytest

from dormouse_worker.common.commands import TAGS
from dormouse_worker.common.errors import AdapterInvalid
from dormouse_worker.engine.adapters import AdapterSlots
from dormouse_worker.engine.testing import make_add
from dormouse_worker.executor.testing_groups import FakeGroupExecutor
from dormouse_worker.model.testing import write_tiny_model
from dormouse_worker.model.testing_adapters import write_soft_prompt
from tests.peft_kit import greedy_tokens, make_adapter, make_soft_prompt
from tests.worker.engine.engine_kit import finish
from tests.worker.executor.group_kit import MAX_TOKENS, PROMPTS, counters, make_engine

RANKS = (1, 8)
INVOCATION = PROMPTS["3"][10:12]  # of an activated adapter; prompts without it are the base's
MODELS = {  # architecture and settings
    "llama": ("llama", {"model_impl": "lean"}),
    "llama without kernels": ("llama", {"model_impl": "lean", "attention_backend": "sdpa"}),
    "llama through transformers": ("llama", {"model_impl": "transformers"}),
    "qwen3": ("qwen3", {"model_impl": "lean"}),
    "gemma2": ("gemma2", {}),
    "phi3": ("phi3", {}),  # ranks gather what its first maps make, and divide what its last ones get
}
SHAPES = [(2, 1), (1, 2), (2, 2)]


class Group:
    """Ranks with adapters, and what peft says with each."""

    def __init__(self, base, adapters, expected, shape, settings):
        sizes = {"enable_lora": True, "max_loras": 2, "max_lora_rank": max(RANKS), "max_cpu_loras": len(adapters)}
        self.ranks = FakeGroupExecutor(base, *shape, **sizes, **settings)
        self.infos = {name: self.ranks.add_lora(path) for name, path in adapters.items()}
        self.digests = {"": "", **{name: info.digest for name, info in self.infos.items()}}
        self.expected = expected

    def engine(self, **fields):
        slots = AdapterSlots(2)
        for info in self.infos.values():
            slots.add(info)
        return make_engine(self.ranks, slots=slots, **fields)

    def run(self, engine):
        """Return what each adapter says to each prompt, all asked for at once."""
        for adapter, prompt in self.expected:
            message = make_add(f"{adapter}/{prompt}", PROMPTS[prompt], max_tokens=MAX_TOKENS)
            assert engine.add(msgspec.structs.replace(message, adapter=self.digests[adapter])) is None
        told = finish(engine, {f"{adapter}/{prompt}": [] for adapter, prompt in self.expected})
        return {tuple(key.split("/")): tokens for key, tokens in told.items()}


@pytest.fixture(scope="module")
def group_of(tmp_path_factory):
    """Return a function (name in MODELS, (T, P)) → Group."""
    made = []

    @functools.cache
    def written(architecture):
        folder, base = (
            tmp_path_factory.mktemp(architecture),
            write_tiny_model(tmp_path_factory.mktemp("base"), architecture),
        )
        adapters = {str(rank): make_adapter(folder / str(rank), base, rank=rank) for rank in RANKS}
        adapters["soft"] = make_soft_prompt(folder / "soft", base, kind="PROMPT_TUNING", num_tokens=6)
        adapters["activated"] = make_adapter(folder / "4", base, rank=4, alora_invocation_tokens=INVOCATION)
        expected = {
            (name, prompt): greedy_tokens(base, adapters.get(name), ids, MAX_TOKENS, ignore_eos=True)
            for name in ("", *adapters)
            for prompt, ids in PROMPTS.items()
        }
        said = {str([expected[name, prompt] for prompt in PROMPTS]) for name in ("", *adapters)}
        assert len(said) == 1 + len(adapters), "else equality would prove nothing"
        return base, adapters, expected

    @functools.cache
    def make(model, shape):
        architecture, settings = MODELS[model]
        made.append(Group(*written(architecture), shape, settings))
        return made[-1]

    yield make
    for group in made:
        group.ranks.shutdown()


SAMPLE = {("llama", shape) for shape in SHAPES} | {("llama through transformers", (2, 2)), ("phi3", (2, 1))}
each_group = pytest.mark.parametrize(
    ("model", "shape"),
    [
        pytest.param(model, shape, marks=() if (model, shape) in SAMPLE else pytest.mark.slow)
        for model in MODELS
        for shape in SHAPES
    ],
    ids=str,
)


@each_group
def test_a_batch_that_mixes_adapters_says_what_peft_says_before_and_after_sleeps(group_of, model, shape):
    group = group_of(model, shape)
    engine = group.engine()
    assert group.run(engine) == group.expected
    for level in (1, 2):
        group.ranks.sleep(level, TAGS)
        group.ranks.wake_up(TAGS)
        engine.forget_ranks()
        assert group.run(engine) == group.expected


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("settings", [{"tokens": 7}, {"tokens": 8, "num_blocks": 12, "host_blocks": 12}], ids=str)
def test_chunks_and_preemption_change_no_token(group_of, shape, settings):
    group = group_of("llama", shape)
    engine = group.engine(**settings)
    assert group.run(engine) == group.expected
    assert (counters(engine).preemptions > 0) == ("num_blocks" in settings)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_prefix_is_known_to_its_own_adapter_alone(group_of, shape):
    group = group_of("llama", shape)
    engine = group.engine(tokens=16, caches=True)
    assert group.run(engine) == group.expected
    before = counters(engine).prefix_hits
    assert group.run(engine) == group.expected
    assert counters(engine).prefix_hits > before


@pytest.mark.parametrize("shape", [(2, 1), (1, 2)], ids=str)
def test_keys_and_values_for_several_ranks_are_refused_by_name(group_of, tmp_path, shape):
    group = group_of("llama", shape)
    base = group.ranks.workers[0].settings.model_path
    with pytest.raises(AdapterInvalid, match=r"peft_type is 'PREFIX_TUNING', which brings keys .* on one$"):
        group.ranks.add_lora(write_soft_prompt(tmp_path, base, kind="PREFIX_TUNING"))


def test_each_rank_has_its_share_of_an_adapter_alone(group_of):
    whole = group_of("llama", (1, 1)).ranks.workers[0]._loaded().adapters
    stages = [worker._loaded().adapters for worker in group_of("llama", (1, 2)).ranks.workers]
    assert sum(each.layout.slot_bytes for each in stages) == whole.layout.slot_bytes
    divided = [worker._loaded().adapters for worker in group_of("llama", (2, 1)).ranks.workers]
    assert max(each.layout.slot_bytes for each in divided) < whole.layout.slot_bytes
    assert all(each.infos.keys() == whole.infos.keys() for each in (*stages, *divided))
