"""What routers are told of the cache is what is in it, whatever happens to it; and it is said in vLLM's words."""

from __future__ import annotations

import random

import msgspec
import pytest

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.images import ImageInput
from dormouse_worker.common.ipc import AddRequest
from dormouse_worker.common.kv_events import KvEventsConfig
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.assembly import build_engine, build_stepper
from dormouse_worker.engine.block_pool import BlockPool
from dormouse_worker.engine.block_tables import CacheLayout
from dormouse_worker.engine.kv_events import MAX_BATCH_BLOCKS, KvEventLog, wire_hash
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.testing import ManualClock, make_report, make_sampling
from dormouse_worker.engine.testing_stages import AheadFakeExecutor, StagedFakeExecutor
from dormouse_worker.engine.validation import check_settings
from dormouse_worker.kv_store.testing import DictBlockStore
from tests.worker.engine.mirror import Mirror
from tests.worker.engine.store_kit import PROMPT, StoredEngine

ON = KvEventsConfig(enable_kv_cache_events=True)
SIZE = 4


def make_request(prompt, **fields):
    return Request("a", list(prompt), make_sampling(), 0.0, **fields)


class Cache:
    """A pool whose listener is a log, and what was read of it."""

    def __init__(self, *windows, num_blocks=400):
        self.layout = CacheLayout(SIZE, windows or (None,))
        self.pool = BlockPool(num_blocks)
        self.pool.listener = self.log = KvEventLog(self.layout, lambda: 7.5)

    def store(self, request, *, groups=(0,)):
        """Name all full blocks of a request; return them."""
        blocks = []
        for index, name in enumerate(request.block_hashes(request.num_tokens, SIZE)):
            assert index < len(request.named_hashes)
            for group in groups:
                blocks += self.pool.allocate(1)
                self.pool.name(blocks[-1], (group, name), request)
        return blocks

    def read(self):
        return [msgspec.msgpack.decode(batch) for batch in self.log.take()]


def run(seed, executor_class, windows, *, stages=1, method="off"):
    """Disturb an engine at random; after each turn the mirror knows what the pool knows. Return what was seen."""
    chance = random.Random(seed)
    report = make_report(num_gpu_blocks=8, max_model_len=24)
    executor = executor_class(report, windows=windows)
    settings = EngineSettings(
        model="m",
        max_num_seqs=4,
        max_num_batched_tokens=9,
        pipeline_parallel_size=stages,
        speculation_method=method,
        kv_events_config=ON,
    )
    engine = build_engine(settings, report, (8, chance.choice([0, 4])), executor, clock=ManualClock())
    pool, mirror, seen = engine._scheduler.tables.pool, Mirror(), set()
    for number in range(150):
        first = chance.randrange(2)
        prompt = [*range(first, first + chance.randint(1, 20))]
        what = chance.random()
        if what < 0.4:
            salt = chance.choice(["", "", "x"])
            request = AddRequest(str(number), prompt, make_sampling(max_tokens=chance.randint(1, 12)), cache_salt=salt)
            assert engine.add(request) is None
        elif what < 0.44:
            engine.abort([chance.choice(engine._scheduler.request_ids or ["none"])])
        elif what < 0.46:
            executor.fail_once["execute_model"] = RuntimeError("boom")
        elif what < 0.48:
            engine.forget_prefixes()
        for _ in range(chance.randrange(3)):
            before = set(mirror.known)
            outputs = engine.step()
            mirror.read(outputs.kv_events if outputs else ())
            seen |= {"removed"} if before - mirror.known else set()
        mirror.read(engine.outputs([]).kv_events)
        assert mirror.known == {(group, wire_hash(name)) for group, name in pool._block_of}
        if windows == (None,):
            request = make_request(prompt)
            assert mirror.num_cached(prompt, SIZE) == engine._scheduler._placement.find_prefix(request).num_tokens
    seen |= {"cleared"} if mirror.num_cleared else set()
    return seen | ({"preempted"} if engine._scheduler.counters.preemptions else set())


@pytest.mark.parametrize("windows", [(None,), (5,), (None, 5)])
@pytest.mark.parametrize(
    ("executor_class", "options"),
    [(StagedFakeExecutor, {"stages": 2}), (StagedFakeExecutor, {"method": "ngram"}), (AheadFakeExecutor, {})],
)
def test_a_mirror_of_the_cache_is_the_cache_after_any_schedule(executor_class, options, windows):
    seen = set()
    for seed in range(8):
        seen |= run(seed, executor_class, windows, **options)
    assert seen == {"removed", "cleared", "preempted"}


def test_events_are_what_vllm_sends():
    """The words are those of a message of vLLM 0.26, as its users captured it."""
    cache = Cache()
    request = make_request(range(10))
    cache.store(request)
    first, second = map(wire_hash, request.named_hashes)
    stored = {
        "type": "BlockStored",
        "block_hashes": [first, second],
        "parent_block_hash": None,
        "token_ids": [*range(8)],
        "block_size": SIZE,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None, None],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    assert cache.read() == [[7.5, [stored], 0]]
    assert 0 <= first < 1 << 64


def test_blocks_that_give_way_are_removed_before_what_takes_their_place():
    cache = Cache(num_blocks=2)
    old, new = make_request(range(8)), make_request(range(50, 58))
    cache.pool.release(cache.store(old))
    cache.store(new)
    [[_, events, _]] = cache.read()
    assert [event["type"] for event in events] == ["BlockStored", *["BlockRemoved", "BlockStored"] * 2]
    assert [event["block_hashes"] for event in events[1::2]] == [[wire_hash(name)] for name in old.named_hashes[::-1]]


def test_what_was_forgotten_before_anybody_heard_of_it_is_not_told():
    cache = Cache()
    cache.store(make_request(range(8)))
    cache.pool.forget_prefixes()
    assert cache.read() == [[7.5, [{"type": "AllBlocksCleared"}], 0]]
    cache.pool.forget_prefixes()
    assert not cache.log.has_news, "there was nothing to forget"


def test_layers_with_a_window_are_a_group_of_their_own():
    cache = Cache(None, 6)
    cache.store(make_request(range(8)), groups=(0, 1))
    [[_, events, _]] = cache.read()
    kinds = [(e["group_idx"], e["kv_cache_spec_kind"], e.get("kv_cache_spec_sliding_window")) for e in events]
    assert kinds == [(0, "full_attention", None), (1, "sliding_window", 6)] * 2


def test_what_distinguishes_equal_tokens_is_told():
    """The base's blocks before an adapter begins are the base's."""
    image = ImageInput(b"\x12" * 32, [(5, 2)], "file", 1)
    cache = Cache()
    cache.store(make_request(range(12), cache_salt="s", adapter="d1", lora_start=6, images=[image]))
    [[_, events, _]] = cache.read()
    assert [(event["lora_name"], event["extra_keys"]) for event in events] == [
        (None, [["s"]]),
        ("d1", [["d1", "12" * 32], ["d1"]]),
    ]


def test_a_long_prompt_is_told_in_messages_of_a_bounded_size():
    cache, mirror = Cache(), Mirror()
    cache.pool.release(cache.store(make_request(range(4 * 300))))
    assert repr(cache.log) == "KvEventLog(1 batches, 44 blocks)"
    batches = cache.log.take()
    mirror.read(batches)
    assert len(mirror.known) == 300
    assert len(batches) == 2
    cache.pool.release(cache.pool.allocate(400))
    batches = cache.log.take()
    mirror.read(batches)
    assert not mirror.known
    assert [len(msgspec.msgpack.decode(each)[1][0]["block_hashes"]) for each in batches] == [MAX_BATCH_BLOCKS, 44]


def test_nothing_is_told_unless_it_was_asked_for():
    report = make_report(num_gpu_blocks=8)
    engine = build_engine(EngineSettings(model="m"), report, (8, 0), StagedFakeExecutor(report), clock=ManualClock())
    engine.add(AddRequest("a", [*range(9)], make_sampling(max_tokens=2)))
    while (outputs := engine.step()) is not None:
        assert outputs.kv_events == []


def test_a_cache_without_prefixes_is_refused_by_name():
    with pytest.raises(InvalidSettings, match="kv_events_config is on; without enable_prefix_caching"):
        check_settings(EngineSettings(model="m", kv_events_config=ON, enable_prefix_caching=False))
    report = make_report(block_bytes=0)
    settings = EngineSettings(model="m", kv_events_config=ON)
    with pytest.raises(InvalidSettings, match="a model for embed has no prefix cache"):
        build_stepper(settings, report, (0, 0), StagedFakeExecutor(report), clock=ManualClock(), task="embed")


def test_blocks_that_come_back_from_a_store_are_told_as_any_others():
    stored, mirror = StoredEngine(DictBlockStore()), Mirror()
    pool = stored.tables.pool
    pool.listener = KvEventLog(stored.tables.layout, lambda: 1.0)
    stored.ask(PROMPT)
    stored.save()
    stored.engine.forget_prefixes()
    assert stored.ask(PROMPT) == 16, "read, not computed"
    mirror.read(stored.kv_events)
    assert mirror.known == {(group, wire_hash(name)) for group, name in pool._block_of}
    assert mirror.num_cached([*PROMPT], SIZE) == 16


def test_a_log_says_how_much_nobody_has_taken():
    cache = Cache()
    cache.store(make_request(range(2 * SIZE)))
    assert repr(cache.log) == "KvEventLog(0 batches, 2 blocks)"
