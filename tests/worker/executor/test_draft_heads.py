"""An EAGLE head changes nothing but the time: whatever it says, asleep or gone, its model's tokens come."""

from __future__ import annotations

import random

import pytest
import torch

from dormouse_worker.executor.testing_drafts import draft_always
from tests.worker.executor import draft_kit
from tests.worker.executor.grammar_kit import BoundRank
from tests.worker.executor.plain_heads import PlainFirst, PlainThird
from tests.worker.executor.test_drafts import ASKED, PERIOD, Asking, count, same_but_rounding
from tests.worker.executor.test_grammar_crossings import kill_and_resume

GREEDY = {"temperature": 0.0, "max_tokens": 30}
KINDS = ["taught", "ignorant", "broken", "third, taught", "third, ignorant", "third, broken"]
PLAIN = {"ignorant": PlainFirst, "third, ignorant": PlainThird}
LONG = [(7 * place) % 250 for place in range(80)]


@pytest.fixture(scope="module")
def truth(tiny_model):
    """Return what a rank without drafts says to each of ASKED, alone."""
    asking = Asking(tiny_model, "off", worker="no torch")
    said, _ = asking.say(ASKED, together=False)
    asking.close()
    return said


@pytest.fixture(scope="module")
def heads(tiny_model, tmp_path_factory, truth):
    """The directories of heads, by kind."""
    return draft_kit.heads_of(tmp_path_factory.mktemp("heads"), tiny_model, [[*PERIOD, *truth[0][0]]])


def ask(directory, head, **settings):
    """Return a rank that always asks its head for all that there is room for."""
    asking = Asking(directory, "eagle", worker="no torch", speculation_model=str(head), **settings)
    draft_always(asking.rank.controller._engine)
    return asking


@pytest.mark.parametrize("kind", KINDS)
def test_with_any_head_every_kind_of_sampling_says_the_same(tiny_model, heads, truth, kind):
    asking = ask(tiny_model, heads[kind], max_num_seqs=64)
    for together in (True, False):
        said, told = asking.say(ASKED, together=together)
        same_but_rounding(said, truth)
        scored, taken = count(told)
        assert scored > taken > 0 if "taught" in kind else scored >= taken
        assert ("broken" in kind) == (scored == 0)
    asking.close()


class Overheard:
    """What a head proposed, each time with the tokens that were known then."""

    def __init__(self, asking, monkeypatch):
        drafter = asking.rank.controller._executor._wrapper._worker._allocation._runner._drafter
        self.heard, self._propose, self._sequences = [], drafter.propose, drafter._sequences
        monkeypatch.setattr(drafter, "propose", self)

    def __call__(self, batch, output):
        proposals = self._propose(batch, output)
        for request_id, drafts in proposals.token_ids.items():
            sequence = self._sequences.sequence(request_id)
            num_known = sequence.num_prompt_tokens + sequence.position
            self.heard.append((self._sequences.read(sequence, 0, num_known).tolist(), list(drafts)))
        return proposals

    def take(self):
        """Return what was heard since this was asked last: drafts by the tokens known then."""
        heard, self.heard = {tuple(known): drafts for known, drafts in self.heard}, []
        return heard


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize(
    "settings", [{}, {"max_num_batched_tokens": 16, "max_num_seqs": 8, "swap_space_bytes": 1 << 20}]
)
def test_it_says_what_it_says_over_the_whole_sequence(tiny_model, heads, monkeypatch, settings, kind):
    asking = ask(tiny_model, heads[kind], num_speculative_tokens=3, **settings)
    overheard, plainly = Overheard(asking, monkeypatch), PLAIN[kind](tiny_model, heads[kind])
    asking.say([{**GREEDY, "max_tokens": 36 + number} for number in range(5)], prompt=LONG[:37])
    assert asking.rank.preemptions
    assert asking.rank.has_swapped == ("swap_space_bytes" in settings)
    asking.say([GREEDY], prompt=LONG[:37])  # of which a part is known by now
    asking.say([GREEDY], prompt=LONG, salt="another")
    assert len(overheard.heard) > 20
    for tokens, drafts in overheard.heard[::3]:
        assert plainly.regret(tokens, drafts) < 1e-3
    asking.close()


@pytest.mark.parametrize("level", [1, 2])
def test_it_sleeps_and_wakes_with_its_model(tiny_model, heads, truth, level):
    asking = ask(tiny_model, heads["taught"])
    before, told = asking.say(ASKED[:1])
    assert count(told)[1] > 0
    for tags in (("weights", "kv_cache"), ("kv_cache",), ("weights",)):
        asking.rank.sleep(level, tags)
        asking.rank.wake(tags)
        after, told = asking.say(ASKED[:1])
        assert after == before == truth[:1]
        assert count(told)[1] > 0
    asking.close()


@pytest.mark.parametrize("level", [1, 2])
def test_streams_that_a_sleep_cuts_between_drafted_steps_go_on_after_it(tiny_model, heads, truth, level):
    rank = BoundRank(
        tiny_model,
        worker="no torch",
        speculation_method="eagle",
        speculation_model=str(heads["taught"]),
        max_num_seqs=48,
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


def test_resumed_after_any_token_with_and_without_it_the_rest_is_said(tiny_model, heads, truth):
    asking, plain = ask(tiny_model, heads["taught"]), Asking(tiny_model, "off")
    for wish, (tokens, *_) in zip(ASKED[:3], truth[:3], strict=True):
        known = [tokens[:count_known] for count_known in range(len(tokens))]
        for rank in (asking, plain):
            said, _ = rank.say([wish] * len(known), resumed=known)
            assert [rest for rest, *_ in said] == [tokens[len(before) :] for before in known]
    asking.close()
    plain.close()


def test_where_it_does_not_come_back_the_model_serves_without_and_says_so(tiny_model, heads, truth, tmp_path):
    head = draft_kit.same(tmp_path / "head", heads["taught"])
    asking = ask(tiny_model, head)
    assert f"drafts by the head {head}" in asking.rank.status.model.compute_path
    weights = (head / draft_kit.WEIGHTS).read_bytes()
    (head / draft_kit.WEIGHTS).unlink()
    asking.rank.sleep(2)
    asking.rank.wake()
    assert asking.rank.is_ready
    assert "no drafts, as the head did not come back" in asking.rank.status.model.compute_path
    said, told = asking.say(ASKED[:2])
    assert (said, count(told)) == (truth[:2], (0, 0))
    assert sum(message.drafts.num_model_failures for message in told if message.drafts) > 0
    (head / draft_kit.WEIGHTS).write_bytes(weights)
    asking.rank.sleep(2)
    asking.rank.wake()
    said, told = asking.say(ASKED[:2], salt="another")
    assert said == truth[:2]
    assert count(told)[1] > 0
    asking.close()


def test_a_pass_of_it_that_raises_costs_its_drafts_only(tiny_model, heads, truth, monkeypatch):
    asking = ask(tiny_model, heads["taught"])
    drafter = asking.rank.controller._executor._wrapper._worker._allocation._runner._drafter
    compute, calls = drafter._passes._compute, []

    def fail_now_and_then(*arguments):
        calls.append(1)
        if len(calls) % 3 == 2:
            raise RuntimeError("boom")
        return compute(*arguments)

    monkeypatch.setattr(drafter._passes, "_compute", fail_now_and_then)
    said, told = asking.say(ASKED[:3])
    assert said == truth[:3]
    assert len(calls) > 2
    assert sum(message.drafts.num_model_failures for message in told if message.drafts) > 0
    asking.close()


def test_names_that_other_engines_give_its_class_and_unread_tensors_are_taken(tiny_model, heads, tmp_path, truth):
    head = draft_kit.same(tmp_path / "head", heads["taught"])
    draft_kit.change_config(head, architectures=["LlamaForCausalLMEagle"], bias=True)
    draft_kit.change_weights(
        head,
        lambda weights: weights.update(
            {"embed_tokens.weight": torch.zeros(260, 32), "fc.bias": torch.zeros(32), "lm_head.weight": torch.zeros(1)}
        ),
    )
    asking = ask(tiny_model, head)
    said, told = asking.say(ASKED[:1])
    assert said == truth[:1]
    assert count(told)[1] > 0
    asking.close()


@pytest.mark.parametrize("is_whole", [False, True])
def test_an_eagle_3_head_may_be_named_as_other_engines_name_it(tiny_model, heads, tmp_path, truth, is_whole):
    head = draft_kit.same(tmp_path / "head", heads["third, taught"])
    draft_kit.change_config(
        head,
        architectures=["Eagle3LlamaForCausalLM"],
        eagle_aux_hidden_state_layer_ids=None,
        eagle_config={"eagle_aux_hidden_state_layer_ids": [-1, 0, 1], "use_aux_hidden_state": True},
        **({"draft_vocab_size": None} if is_whole else {}),
    )

    def rename(weights):
        for name in [name for name in weights if name.startswith("midlayer.")]:
            weights[name.replace("midlayer.", "layers.0.")] = weights.pop(name)
        (own,) = weights.pop("t2d").nonzero(as_tuple=True)
        if is_whole:
            del weights["d2t"]
            weights["lm_head.weight"] = torch.zeros(260, 32).index_copy_(0, own, weights["lm_head.weight"])
        weights["embed_tokens.weight"] = torch.zeros(260, 32)

    draft_kit.change_weights(head, rename)
    asking = ask(tiny_model, head)
    said, told = asking.say(ASKED[:1])
    assert said == truth[:1]
    assert count(told)[1] > 0
    asking.close()


def test_its_part_of_the_cache_is_counted_in_every_block(tiny_model, heads):
    with_it, without = ask(tiny_model, heads["ignorant"]), Asking(tiny_model, "off", worker="no torch")
    ours, plain = with_it.rank.status.report, without.rank.status.report
    assert ours.block_bytes == plain.block_bytes * 3 // 2
    assert ours.weights_bytes > plain.weights_bytes
    with_it.close()
    without.close()


@pytest.mark.parametrize("stored", ["int8", "fp8"])
def test_a_cache_of_8_bits_holds_its_keys_too(tiny_model, heads, stored):
    plain = Asking(tiny_model, "off", worker="no torch", kv_cache_dtype=stored)
    asking = ask(tiny_model, heads["taught"], kv_cache_dtype=stored)
    wishes = [{**GREEDY, "max_tokens": 12}, {**GREEDY, "temperature": 0.8, "seed": 3}]
    said, told = asking.say(wishes)
    assert said == plain.say(wishes)[0]
    assert count(told)[0] > 0
    plain.close()
    asking.close()
