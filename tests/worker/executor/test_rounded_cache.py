"""A cache of 8 bits lives with everything else: what a worker says depends on its prompts alone."""

from __future__ import annotations

import pytest
from msgspec import structs

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.executor.testing import make_settings, start
from dormouse_worker.executor.testing_groups import FakeGroupExecutor
from dormouse_worker.model.bits_rules import check_cache_dtype
from dormouse_worker.model.testing import write_tiny_model
from tests.worker.executor.grammar_kit import BoundRank, schema
from tests.worker.executor.sleeping_rank import EVERY_WORKER, PROMPTS, WORKERS, SleepingRank
from tests.worker.executor.test_adapters import AdaptedRank
from tests.worker.executor.test_drafts import ASKED, Asking
from tests.worker.executor.test_grammars import PERSON
from tests.worker.executor.test_groups import PROMPTS as GROUP_PROMPTS
from tests.worker.executor.test_groups import make_engine, run

INT8, FP8 = ({"kv_cache_dtype": stored} for stored in ("int8", "fp8"))
CACHES = [*((worker, INT8) for worker in EVERY_WORKER), ("cpu", FP8), ("no torch", FP8)]
MANY = {f"m{number}": [*range(5 + 3 * number, 40 + 5 * number)] for number in range(8)}


each_cache = pytest.mark.parametrize(("worker", "rounded"), CACHES)
each_kind = pytest.mark.parametrize("rounded", [INT8, FP8])


@pytest.mark.parametrize("keeps", [False, True])
@each_cache
def test_answers_after_each_sleep_are_those_of_a_worker_that_never_slept(tiny_model, worker, rounded, keeps):
    rank = SleepingRank(tiny_model, worker, keeps=keeps, **rounded)
    for level in (1, 2):
        rank.ask(PROMPTS[0])
        rank.sleep(level)
        rank.wake()
        known = rank.check_answer(0)
        assert bool(known) is (keeps and level == 1)
        rank.check_answer(1)
    rank.close()


@pytest.mark.parametrize("quantization", ["none", "int8"])
@each_cache
def test_together_in_chunks_preempted_and_swapped_they_say_what_each_says_alone(
    tiny_model, worker, rounded, quantization
):
    settings = {"keeps": False, "quantization": quantization, "starts": False, **rounded}
    alone = SleepingRank(tiny_model, worker, **settings)
    alone.agree(40)
    wanted = {name: alone.ask_together({name: prompt}, max_tokens=20).said[name] for name, prompt in MANY.items()}
    alone.close()
    for swap in (0, 24):
        few = {"max_num_seqs": 8, "max_num_batched_tokens": 16, "swap_space_bytes": swap << 10}
        rank = SleepingRank(tiny_model, worker, **few, **settings)
        rank.agree(33)
        assert rank.ask_together(MANY, max_tokens=20).said == wanted
        assert rank.preemptions
        assert rank.has_swapped == bool(swap)
        rank.close()


@pytest.mark.parametrize(
    "settings",
    [
        INT8,
        FP8,
        INT8 | {"attention_backend": "sdpa"},
        FP8 | {"attention_backend": "sdpa"},
        INT8 | {"worker": "no torch"},
    ],
)
def test_drafts_change_no_token(tiny_model, settings):
    said = []
    for method in ("off", "suffix"):
        asking = Asking(tiny_model, method, **settings)
        said.append(asking.say(ASKED)[0])
        asking.close()
    assert said[0] == said[1]


@pytest.mark.parametrize(("worker", "rounded"), [*((worker, INT8) for worker in WORKERS), ("cpu", FP8)])
def test_adapters_say_together_what_each_says_alone(tiny_model, tmp_path, worker, rounded):
    rank = AdaptedRank(tiny_model, tmp_path, worker, **rounded)
    together, alone = rank.answers(), []
    for digest in ("", *rank.digests):
        start = len(rank._sent)
        name = rank.start(digest)
        alone.append(rank.finish(start).said[name])
    assert together == alone
    assert len({str(said) for said in together}) == 3
    rank.close()


@each_cache
def test_bound_answers_are_cut_short_nowhere(tiny_model, worker, rounded):
    said = []
    for num_tokens in (64, 16):
        rank = BoundRank(tiny_model, worker, max_num_batched_tokens=num_tokens, **rounded)
        said.append(rank.answer(schema(PERSON), temperature=1.0, seed=5))
        rank.close()
    assert [answer.finish_reason for answer in said] == ["stop"] * 2
    assert said[0].token_ids == said[1].token_ids


@each_kind
@pytest.mark.parametrize("shape", [(2, 1), (1, 2)])
def test_ranks_round_their_own_heads(tmp_path, shape, rounded):
    directory = write_tiny_model(tmp_path / "model", num_hidden_layers=4)
    said = []
    for tensor, pipeline in ((1, 1), shape):
        group = FakeGroupExecutor(directory, tensor, pipeline, **rounded)
        said.append(run(make_engine(group), GROUP_PROMPTS))
        paths = {worker.get_model_info().compute_path for worker in group.workers}
        assert all(f", cache {rounded['kv_cache_dtype']}" in path for path in paths)
        group.shutdown()
    assert said[0] == said[1]


@each_kind
def test_blocks_are_smaller_and_the_status_says_why(tiny_model, workers, rounded):
    plain, small = workers(tiny_model), workers(tiny_model, **rounded)
    start(plain), start(small)
    specs = [worker._model.cache_spec for worker in (plain, small)]
    layer = specs[0].layers[0]
    numbers = specs[0].block_bytes // layer.dtype.itemsize
    assert specs[1].block_bytes == numbers + numbers // layer.key_size * 2
    path = plain.get_model_info().compute_path
    assert small.get_model_info().compute_path == f"{path}, cache {rounded['kv_cache_dtype']}"


@each_kind
@pytest.mark.parametrize(
    ("read", "named"),
    [
        ("sounds", "it is not combined with a model that reads sounds"),
        ("", "task embed keeps no paged cache of keys and values"),
    ],
)
def test_what_does_not_read_it_is_refused_by_name(read, named, rounded):
    settings = make_settings("/nowhere", task="embed")
    asked = {"generates": False, "read": read}
    check_cache_dtype(settings, **asked)
    said = f"kv_cache_dtype is {rounded['kv_cache_dtype']}, and .*{named}; set it to auto"
    with pytest.raises(InvalidSettings, match=said):
        check_cache_dtype(structs.replace(settings, **rounded), **asked)


@each_kind
def test_so_is_another_backend_for_attention(tiny_model, workers, rounded):
    worker = workers(tiny_model, attention_backend="varlen", **rounded)
    with pytest.raises(InvalidSettings, match=r"varlen.*: it does not read keys and values of 8 bits"):
        start(worker)
