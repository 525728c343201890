"""The scheduler and the prefix cache: what is known is not computed again."""

from dormouse_worker.engine.request import Request
from dormouse_worker.engine.testing import make_sampling
from tests.worker.engine.scheduler_kit import add, make_scheduler, step
from tests.worker.engine.tables_kit import CountingPool


def test_an_equal_beginning_is_taken_from_the_cache_even_after_its_end():
    scheduler = make_scheduler(tokens=16, caches=True)
    add(scheduler, "a", 10, max_tokens=1)
    assert step(scheduler) == {"a": (0, 10, True)}
    again = add(scheduler, "b", 9, max_tokens=1)
    assert step(scheduler) == {"b": (8, 9, True)}
    assert again.num_cached_tokens == 8
    add(scheduler, "c", 10)
    assert step(scheduler) == {"c": (8, 10, True)}
    assert (scheduler.counters.prefix_queries, scheduler.counters.prefix_hits) == (29, 16)


def test_a_block_that_ends_in_the_output_is_named_by_what_stands_in_it():
    scheduler = make_scheduler(tokens=16, caches=True)
    add(scheduler, "a", 7, max_tokens=2)
    step(scheduler)
    step(scheduler)
    scheduler.add(Request("b", [*range(7), 5, 9], make_sampling(), arrival_s=0.0))
    assert step(scheduler) == {"b": (8, 9, True)}


def test_the_last_token_is_always_computed():
    scheduler = make_scheduler(tokens=16, caches=True)
    add(scheduler, "a", 8, max_tokens=1)
    step(scheduler)
    add(scheduler, "b", 8)
    assert step(scheduler) == {"b": (4, 8, True)}


def test_another_salt_shares_nothing():
    scheduler = make_scheduler(tokens=16, caches=True)
    add(scheduler, "a", 10, max_tokens=1)
    step(scheduler)
    add(scheduler, "b", 10, salt="other")
    assert step(scheduler) == {"b": (0, 10, True)}


def test_whoever_asks_for_prompt_logprobs_computes_the_whole_prompt():
    scheduler = make_scheduler(tokens=16, seqs=16, caches=True)
    add(scheduler, "a", 10, max_tokens=1)
    step(scheduler)
    add(scheduler, "b", 10, prompt_logprobs=0)
    assert step(scheduler) == {"b": (0, 10, True)}


def test_a_prefix_that_does_not_fit_now_is_found_again_later():
    scheduler = make_scheduler(num_blocks=4, tokens=16, caches=True)
    add(scheduler, "a", 9, max_tokens=4)
    step(scheduler)
    waiting = add(scheduler, "b", 15)
    assert set(step(scheduler)) == {"a"}
    assert waiting.num_computed_tokens == 0
    assert waiting.shortage.next_hash == waiting.block_hashes(12, 4)[2], (
        "it waits for a third block to be known, or room"
    )
    scheduler.remove("a")
    assert step(scheduler) == {"b": (8, 15, True)}
    assert scheduler.counters.prefix_queries == 9 + 15


def test_a_preempted_sequence_finds_what_it_computed_and_is_not_counted_again():
    scheduler = make_scheduler(num_blocks=4, tokens=16, caches=True)
    add(scheduler, "old", 7, max_tokens=9)
    request = Request("young", list(range(100, 107)), make_sampling(max_tokens=9), arrival_s=0.0)
    scheduler.add(request)
    for _ in range(3):
        step(scheduler)
    scheduler.remove("old")
    assert step(scheduler)["young"][0] > 0
    assert request.num_cached_tokens == 0
    assert (scheduler.counters.prefix_queries, scheduler.counters.prefix_hits) == (14, 0)


def test_the_blocked_head_does_not_search_its_prefix_again_in_every_pass():
    scheduler = make_scheduler(tokens=64, max_model_len=40, caches=True, pool=CountingPool(10))
    add(scheduler, "known", 33, max_tokens=1)
    step(scheduler)
    scheduler.add(Request("other", [7] * 23, make_sampling(max_tokens=9), arrival_s=0.0))
    add(scheduler, "blocked", 39)
    step(scheduler)
    for _ in range(4):
        num_finds = scheduler.tables.pool.num_finds
        assert set(step(scheduler)) == {"other"}
        assert scheduler.tables.pool.num_finds - num_finds <= 1


def test_who_comes_together_shares_the_beginning_that_the_first_of_them_computes():
    scheduler = make_scheduler(num_blocks=6, tokens=32, caches=True)
    add(scheduler, "a", 9)
    add(scheduler, "b", 13)
    add(scheduler, "c", 7)
    assert step(scheduler) == {"a": (0, 9, True), "b": (8, 13, True), "c": (4, 7, True)}
    scheduler.check_integrity()


def test_a_chunk_of_a_prompt_is_shared_as_far_as_its_pass_goes():
    scheduler = make_scheduler(tokens=8, caches=True)
    add(scheduler, "a", 11)
    add(scheduler, "b", 11)
    assert step(scheduler) == {"a": (0, 8, False)}
    assert step(scheduler) == {"a": (8, 11, True), "b": (8, 11, True)}


def test_what_a_failed_pass_was_to_compute_is_shared_with_nobody():
    scheduler = make_scheduler(tokens=16, caches=True)
    add(scheduler, "a", 9)
    assert scheduler.fail(scheduler.schedule()) == ["a"]
    add(scheduler, "b", 9)
    assert step(scheduler) == {"b": (0, 9, True)}
    scheduler.check_integrity()


def test_the_blocked_head_is_admitted_as_soon_as_a_block_comes_back():
    scheduler = make_scheduler(num_blocks=6, tokens=32, caches=True)
    for name, first in (("a", 0), ("b", 100)):
        scheduler.add(Request(name, list(range(first, first + 9)), make_sampling(), arrival_s=0.0))
    scheduler.add(Request("c", list(range(200, 205)), make_sampling(), arrival_s=0.0))
    assert [set(step(scheduler)) for _ in range(2)] == [{"a", "b"}] * 2
    scheduler.remove("a")
    assert set(step(scheduler)) == {"b", "c"}
    assert scheduler.request("c").shortage is None
