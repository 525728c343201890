"""A model that drafts changes nothing but the time: whatever it says, asleep or gone, the target's tokens come."""

from __future__ import annotations

import json
import random

import pytest

from dormouse_worker.executor.testing_drafts import draft_always
from tests.worker.executor import draft_kit
from tests.worker.executor.grammar_kit import BoundRank
from tests.worker.executor.sleeping_rank import SleepingRank
from tests.worker.executor.test_drafts import ASKED, PERIOD, WAYS_WITH_TORCH, Asking, corrupt, count, same_but_rounding
from tests.worker.executor.test_grammar_crossings import kill_and_resume

KINDS = ("same", "shortened", "ignorant", "broken")


@pytest.fixture(scope="module")
def drafters(tiny_model, tmp_path_factory):
    """The directories of draft models, by kind."""
    root = tmp_path_factory.mktemp("drafters")
    return {kind: getattr(draft_kit, kind)(root / kind, tiny_model) for kind in KINDS}


@pytest.fixture(scope="module")
def truth(tiny_model):
    """Return what a rank without drafts says to each of ASKED, alone, on our kernels."""
    asking = Asking(tiny_model, "off")
    said, _ = asking.say(ASKED, together=False)
    asking.close()
    return said


def ask(directory, drafter, **settings):
    return Asking(directory, "draft", speculation_model=str(drafter), **settings)


@pytest.mark.parametrize("way", WAYS_WITH_TORCH)
@pytest.mark.parametrize("kind", KINDS)
def test_with_any_draft_model_every_kind_of_sampling_says_the_same(tiny_model, drafters, truth, kind, way):
    asking = ask(tiny_model, drafters[kind], **WAYS_WITH_TORCH[way])
    for together in (True, False):
        said, told = asking.say(ASKED, together=together)
        same_but_rounding(said, truth)
    scored, taken = count(told)
    assert scored >= taken > 0 if kind in {"same", "shortened"} else not taken
    asking.close()


GREEDY = {"temperature": 0.0, "max_tokens": 30}
LONG = [(7 * place) % 250 for place in range(80)]


def test_what_is_always_right_is_right_behind_chunks_known_prefixes_and_right_predictions(tiny_model, drafters):
    asking = ask(tiny_model, drafters["same"], num_speculative_tokens=3)
    (said,), told = asking.say([GREEDY], prompt=LONG)
    assert all_right(told) > 10
    for wish in (GREEDY, {**GREEDY, "temperature": 0.8, "seed": 4}):
        for salt in ("", "another"):  # a prefix that is known, one that is not
            _, told = asking.say([wish] * 2, prompt=LONG, salt=salt)
            assert all_right(told) > 10
    again, told = asking.say([GREEDY], prompt=LONG, predictions=[corrupt(said[0], 7)])
    assert again == [said]
    outputs = [output for message in told for output in message.outputs]
    assert count(told) == (
        sum(output.draft_tokens for output in outputs),
        sum(output.accepted_draft_tokens for output in outputs),
    )
    asking.close()


def all_right(told):
    """Return how many drafts were scored, all of which were taken."""
    scored, taken = count(told)
    assert scored == taken
    return taken


@pytest.mark.parametrize("swap", [0, 1 << 20])
def test_what_is_always_right_is_right_behind_a_preemption(tiny_model, drafters, swap):
    asking = ask(tiny_model, drafters["same"], swap_space_bytes=swap, max_num_seqs=8, num_speculative_tokens=2)
    plain = Asking(tiny_model, "off", max_num_seqs=8)
    wishes = [{"temperature": 0.9, "seed": seed, "max_tokens": 40} for seed in range(5)]
    said, told = asking.say(wishes, prompt=LONG[:30])
    assert said == plain.say(wishes, prompt=LONG[:30])[0]
    assert asking.rank.preemptions
    assert asking.rank.has_swapped == bool(swap)
    assert all_right(told) > 0
    asking.close()
    plain.close()


@pytest.mark.parametrize("worker", ["cpu", "own memory"])
@pytest.mark.parametrize("level", [1, 2])
def test_it_sleeps_and_wakes_with_its_target(tiny_model, drafters, level, worker):
    asking = ask(tiny_model, drafters["same"], worker=worker)
    before, told = asking.say([GREEDY], prompt=LONG)
    assert all_right(told) > 0
    for tags in (("weights", "kv_cache"), ("kv_cache",), ("weights",)):
        asking.rank.sleep(level, tags)
        asking.rank.wake(tags)
        after, told = asking.say([GREEDY], prompt=LONG)
        assert after == before
        assert all_right(told) > 0
    asking.close()


@pytest.mark.parametrize("level", [1, 2])
def test_streams_that_a_sleep_cuts_between_drafted_steps_go_on_after_it(tiny_model, drafters, truth, level):
    rank = BoundRank(
        tiny_model, speculation_method="draft", speculation_model=str(drafters["shortened"]), max_num_seqs=48
    )
    draft_always(rank.controller._engine)

    def sleep_and_wake(rank):
        rank.sleep(level)
        rank.wake()

    asked = [({"prompt": PERIOD, "max_tokens": 24, "stop_token_ids": (), **wish}, None) for wish in ASKED[:5]]
    said, sleeps = kill_and_resume([rank], asked, random.Random(6), most_passes=4, between=sleep_and_wake)
    assert [said[number] for number in range(len(asked))] == [tokens for tokens, *_ in truth[:5]]
    assert sleeps > 1
    scored, taken = count([message for message in rank._sent if hasattr(message, "drafts")])
    assert scored >= taken > 0
    rank.close()


@pytest.mark.parametrize("worker", ["cpu", "own memory"])
def test_where_it_does_not_come_back_the_target_serves_without_and_says_so(tiny_model, tmp_path, worker):
    drafter = draft_kit.same(tmp_path / "drafter", tiny_model)
    asking = ask(tiny_model, drafter, worker=worker)
    before, told = asking.say([GREEDY], prompt=LONG)
    assert all_right(told) > 0
    assert f"drafts by {drafter}: " in asking.rank.status.model.compute_path
    weights = (drafter / draft_kit.WEIGHTS).read_bytes()
    (drafter / draft_kit.WEIGHTS).unlink()
    asking.rank.sleep(2)
    asking.rank.wake()
    assert asking.rank.is_ready
    assert "no drafts, as the draft model did not come back" in asking.rank.status.model.compute_path
    after, told = asking.say([GREEDY], prompt=LONG)
    assert after == before
    assert count(told) == (0, 0)
    assert 0 < sum(message.drafts.num_model_failures for message in told if message.drafts) < 5
    (drafter / draft_kit.WEIGHTS).write_bytes(weights)
    asking.rank.sleep(2)
    asking.rank.wake()
    assert "drafts by" in asking.rank.status.model.compute_path
    again, told = asking.say([{**GREEDY, "max_tokens": 40}] * 3, prompt=LONG, together=False)
    assert again[0][0][:30] == before[0][0]
    assert all_right(told) > 0, "its failures are forgiven in time"
    asking.close()


def test_a_pass_of_it_that_raises_costs_its_drafts_only(tiny_model, drafters, monkeypatch):
    asking = ask(tiny_model, drafters["same"])
    before, _ = asking.say([GREEDY], prompt=LONG)
    runner = asking.rank.controller._executor._wrapper._worker._allocation._runner
    compute, calls = runner._drafter._paths.compute, []

    def fail_now_and_then(*arguments):
        calls.append(1)
        if len(calls) % 3 == 2:
            raise RuntimeError("boom")
        return compute(*arguments)

    monkeypatch.setattr(runner._drafter._paths, "compute", fail_now_and_then)
    for wish in (GREEDY, {**GREEDY, "temperature": 0.9, "seed": 3}):
        said, told = asking.say([wish] * 2, prompt=LONG)
        if wish is GREEDY:
            assert said == before * 2
    assert len(calls) > 2
    assert all_right(told) >= 0
    asking.close()


def test_what_does_not_go_with_its_target_is_refused_by_name(tiny_model, tmp_path):
    drafter = draft_kit.shortened(tmp_path / "drafter", tiny_model)
    config, tokenizer = drafter / "config.json", drafter / "tokenizer.json"
    for file, change, reason, named in (
        (
            config,
            lambda it: it | {"vocab_size": it["vocab_size"] - 1},
            "InvalidSettings",
            "vocab_size is 259, the model's is 260",
        ),
        (config, lambda it: it | {"max_position_embeddings": 100}, "InvalidSettings", "above the model's limit of 100"),
        (tokenizer, swap_two_tokens, "InvalidSettings", "a draft model has the same tokens"),
        (config, lambda it: it | {"architectures": ["NoSuchModel"], "model_type": "none"}, "ModelInvalid", ""),
    ):
        content = file.read_text("utf-8")
        file.write_text(json.dumps(change(json.loads(content))), "utf-8")
        status = refusal(tiny_model, drafter)
        assert status.failure_message.startswith(f"speculation_model {drafter}: ")
        assert named in status.failure_message
        assert status.failure_reason == reason
        file.write_text(content, "utf-8")
    gone = refusal(tiny_model, tmp_path / "gone")
    assert (gone.failure_reason, "gone" in gone.failure_message) == ("ModelNotFound", True)


def swap_two_tokens(tokenizer):
    vocabulary = tokenizer["model"]["vocab"]
    one, other = list(vocabulary)[:2]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    return tokenizer


def refusal(directory, drafter, **settings):
    rank = SleepingRank(
        directory,
        "cpu",
        keeps=False,
        starts=False,
        speculation_method="draft",
        speculation_model=str(drafter),
        **settings,
    )
    assert rank.status.state == "FAILED"
    return rank.status


def test_one_that_finds_no_room_is_named_with_its_bytes(tiny_model, drafters):
    status = refusal(tiny_model, drafters["same"], memory_limit_bytes=64 << 20)
    assert status.failure_reason == "InsufficientMemory"
    assert "draft model's weights" in status.failure_message


def test_its_part_of_the_cache_is_counted_in_every_block(tiny_model, drafters):
    with_it, without = ask(tiny_model, drafters["shortened"]), Asking(tiny_model, "off")
    ours, plain = with_it.rank.status.report, without.rank.status.report
    assert ours.block_bytes == plain.block_bytes * 4 // 2
    assert ours.weights_bytes > plain.weights_bytes
    with_it.close()
    without.close()


def test_resumed_after_any_token_with_and_without_it_the_rest_is_said(tiny_model, drafters, truth):
    asking, plain = ask(tiny_model, drafters["shortened"], max_num_seqs=64), Asking(tiny_model, "off")
    draft_always(asking.rank.controller._engine)
    for wish, (tokens, *_) in zip(ASKED[:3], truth[:3], strict=True):
        known = [tokens[:count_known] for count_known in range(len(tokens))]
        for rank in (asking, plain):
            said, told = rank.say([wish] * len(known), resumed=known)
            assert [rest for rest, *_ in said] == [tokens[len(before) :] for before in known]
            assert (count(told)[1] > 0) == (rank is asking)
    asking.close()
    plain.close()
