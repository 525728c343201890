"""An EAGLE head where torch computes its model changes nothing but the time, whoever computes the model's passes."""

from __future__ import annotations

import random

import pytest

from dormouse_worker.executor.testing_drafts import draft_always
from dormouse_worker.model.testing import write_tiny_model
from tests.worker.executor import draft_kit
from tests.worker.executor.grammar_kit import BoundRank
from tests.worker.executor.test_draft_heads import GREEDY, LONG, PLAIN, Overheard
from tests.worker.executor.test_draft_stores import Keeping, check_read_back
from tests.worker.executor.test_drafts import ASKED, PERIOD, Asking, count, same_but_rounding
from tests.worker.executor.test_grammar_crossings import kill_and_resume

WAYS = {
    "our kernels": {},
    "our decoder": {"attention_backend": "sdpa"},
    "transformers": {"model_impl": "transformers"},
}
IN_TORCH = WAYS["our decoder"]


def in_each_way(*rarely):
    """Parametrize by kind of head and way; the pairs of `rarely` take long, and show little that others do not."""
    pairs = [(kind, way) for kind in ("first", "third") for way in WAYS]
    cases = [pytest.param(*pair, marks=pytest.mark.slow if pair in rarely else ()) for pair in pairs]
    return pytest.mark.parametrize(("kind", "way"), cases)


@pytest.fixture(scope="module")
def truth(tiny_model):
    """Return what a rank without drafts says to each of ASKED, alone."""
    asking = Asking(tiny_model, "off", **IN_TORCH)
    said, _ = asking.say(ASKED, together=False)
    asking.close()
    return said


@pytest.fixture(scope="module")
def heads(tiny_model, tmp_path_factory, truth):
    """The directories of heads, by kind."""
    return draft_kit.heads_of(tmp_path_factory.mktemp("heads"), tiny_model, [[*PERIOD, *truth[0][0]]])


def ask(directory, head, **settings):
    """Return a rank with torch that always asks its head for all that there is room for."""
    asking = Asking(directory, "eagle", speculation_model=str(head), **settings)
    draft_always(asking.rank.controller._engine)
    return asking


@in_each_way(("third", "our kernels"), ("first", "our decoder"))
def test_with_right_drafts_every_kind_of_sampling_says_the_same(tiny_model, heads, truth, kind, way):
    head = heads["third, taught" if kind == "third" else "taught"]
    asking = ask(tiny_model, head, max_num_seqs=64, **WAYS[way])
    assert "; drafts by the head" in asking.rank.status.model.compute_path
    said, told = asking.say(ASKED, together=False)
    same_but_rounding(said, truth)
    scored, taken = count(told)
    assert scored > taken > 0
    asking.close()


@pytest.mark.parametrize("kind", ["ignorant", "broken", "third, ignorant"])
def test_with_wrong_ones_too(tiny_model, heads, truth, kind):
    asking = ask(tiny_model, heads[kind], max_num_seqs=64, **IN_TORCH)
    said, told = asking.say(ASKED)
    same_but_rounding(said, truth)
    assert (count(told)[0] == 0) == (kind == "broken")
    asking.close()


@in_each_way(("first", "our kernels"), ("first", "transformers"))
def test_it_says_what_it_says_over_the_whole_sequence(tiny_model, heads, monkeypatch, kind, way):
    small = {"max_num_batched_tokens": 16, "max_num_seqs": 8, "swap_space_bytes": 1 << 20}
    name = "third, ignorant" if kind == "third" else "ignorant"
    asking = ask(tiny_model, heads[name], num_speculative_tokens=3, **small, **WAYS[way])
    overheard, plainly = Overheard(asking, monkeypatch), PLAIN[name](tiny_model, heads[name])
    asking.say([{**GREEDY, "max_tokens": 36 + number} for number in range(5)], prompt=LONG[:37])
    assert asking.rank.has_swapped
    asking.say([GREEDY], prompt=LONG[:37])  # of which a part is known by now
    asking.say([GREEDY], prompt=LONG, salt="another")
    assert len(overheard.heard) > 20
    for tokens, drafts in overheard.heard[::5]:
        assert plainly.regret(tokens, drafts) < 1e-3
    asking.close()


@pytest.mark.parametrize("architecture", ["gemma2", "gpt_neox", "deepseek_v3"])
@pytest.mark.parametrize("kind", ["first", "third"])
def test_models_that_transformers_alone_computes_have_heads_of_llamas_kind(tmp_path, tiny_model, architecture, kind):
    model = write_tiny_model(tmp_path / "model", architecture)
    plain = Asking(model, "off")
    said, _ = plain.say([GREEDY, *ASKED[1:3]], together=False)
    plain.close()
    make = draft_kit.head if kind == "first" else draft_kit.third_head
    asking = ask(model, make(tmp_path / "head", tiny_model))
    again, told = asking.say([GREEDY, *ASKED[1:3]], together=False)
    same_but_rounding(again, said)
    assert count(told)[0] > 0
    asking.close()


@pytest.mark.parametrize("level", [1, 2])
def test_it_sleeps_and_wakes_with_its_model(tiny_model, heads, truth, level):
    asking = ask(tiny_model, heads["third, taught"], **IN_TORCH)
    for tags in (("weights", "kv_cache"), ("kv_cache",), ("weights",)):
        asking.rank.sleep(level, tags)
        asking.rank.wake(tags)
        said, told = asking.say(ASKED[:1])
        assert said == truth[:1]
        assert count(told)[1] > 0
    asking.close()


def test_streams_that_a_sleep_cuts_between_drafted_steps_go_on_after_it(tiny_model, heads, truth):
    drafting = {"speculation_method": "eagle", "speculation_model": str(heads["taught"])}
    rank = BoundRank(tiny_model, max_num_seqs=48, **drafting, **IN_TORCH)
    draft_always(rank.controller._engine)

    def sleep_and_wake(rank):
        rank.sleep(2)
        rank.wake()

    asked = [({"prompt": PERIOD, "max_tokens": 24, "stop_token_ids": (), **wish}, None) for wish in ASKED[:5]]
    said, sleeps = kill_and_resume([rank], asked, random.Random(6), most_passes=4, between=sleep_and_wake)
    assert [said[number] for number in range(len(asked))] == [tokens for tokens, *_ in truth[:5]]
    assert sleeps > 1
    rank.close()


def test_resumed_after_any_token_the_rest_is_said(tiny_model, heads, truth):
    asking = ask(tiny_model, heads["taught"], **IN_TORCH)
    for wish, (tokens, *_) in zip(ASKED[:2], truth[:2], strict=True):
        known = [tokens[:count_known] for count_known in range(len(tokens))]
        said, _ = asking.say([wish] * len(known), resumed=known)
        assert [rest for rest, *_ in said] == [tokens[len(before) :] for before in known]
    asking.close()


def test_where_it_does_not_come_back_or_raises_the_model_serves_without(
    tiny_model, heads, truth, tmp_path, monkeypatch
):
    head = draft_kit.same(tmp_path / "head", heads["taught"])
    asking = ask(tiny_model, head, **IN_TORCH)
    weights = (head / draft_kit.WEIGHTS).read_bytes()
    (head / draft_kit.WEIGHTS).unlink()
    asking.rank.sleep(2)
    asking.rank.wake()
    assert "no drafts, as the head did not come back" in asking.rank.status.model.compute_path
    said, told = asking.say(ASKED[:2])
    assert (said, count(told)) == (truth[:2], (0, 0))
    assert sum(message.drafts.num_model_failures for message in told if message.drafts) > 0
    (head / draft_kit.WEIGHTS).write_bytes(weights)
    asking.rank.sleep(2)
    asking.rank.wake()
    drafter = asking.rank.controller._executor._wrapper._worker._allocation._runner._drafter

    def fail(*_):
        raise RuntimeError("boom")

    monkeypatch.setattr(drafter._passes, "go_on", fail)
    said, told = asking.say(ASKED[:2], salt="another")
    assert said == truth[:2]
    assert sum(message.drafts.num_model_failures for message in told if message.drafts) > 0
    asking.close()


def test_its_part_of_the_cache_is_counted_in_every_block_and_may_have_8_bits(tiny_model, heads):
    plain = Asking(tiny_model, "off", kv_cache_dtype="int8")
    asking = ask(tiny_model, heads["taught"], kv_cache_dtype="int8")
    ours, without = asking.rank.status.report, plain.rank.status.report
    assert ours.block_bytes == without.block_bytes * 3 // 2
    assert ours.draft_bytes == ours.weights_bytes - without.weights_bytes > 0
    wishes = [{**GREEDY, "max_tokens": 12}, {**GREEDY, "temperature": 0.8, "seed": 3}]
    said, told = asking.say(wishes)
    assert said == plain.say(wishes)[0]
    assert count(told)[0] > 0
    plain.close()
    asking.close()


def test_a_store_keeps_its_part_with_the_models_and_for_nobody_without_it(tiny_model, tmp_path, monkeypatch):
    taught = draft_kit.head(tmp_path / "taught", tiny_model, rows=[LONG])
    keeping = Keeping(tiny_model, "eagle", taught, tmp_path / "kv", "cpu")
    overheard = Overheard(keeping.asking, monkeypatch)
    said, cached, _ = keeping.say()
    assert cached == 0
    check_read_back(keeping, overheard, said)
    keeping.close()
    other = Keeping(tiny_model, "off", None, tmp_path / "kv", "cpu")
    assert other.say()[:2] == (said, 0)
    other.close()
