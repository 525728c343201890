"""Drafts change nothing but the time: a rank that has them says what one without them says, token by token."""

from __future__ import annotations

import pytest

from dormouse_worker.common.commands import ResetPrefixCache
from dormouse_worker.common.ipc import AddRequest, StepOutputs
from dormouse_worker.engine.testing import make_sampling
from tests.worker.executor.sleeping_rank import SleepingRank

WAYS_WITH_TORCH = {
    "our kernels": {},
    "torch": {"attention_backend": "sdpa"},
    "tokens promised": {"worker": "own memory"},
}
WAYS = {**WAYS_WITH_TORCH, "no torch": {"worker": "no torch"}}
PERIOD = [*range(40, 52)] * 3  # a prompt in which runs come again
ASKED = [
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 5},
    {"temperature": 1.0, "seed": 6, "top_p": 0.9, "top_k": 40, "min_p": 0.02},
    {"temperature": 0.0, "repetition_penalty": 1.3},
    {"temperature": 0.7, "seed": 7, "presence_penalty": 0.5, "frequency_penalty": 0.4},
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 0.9, "seed": 8, "logit_bias": {45: 4.0, 46: 3.0}},
    {"temperature": 0.9, "seed": 9, "bad_words_token_ids": ((41,), (42, 43), (50, 51, 40))},
    {"temperature": 0.5, "seed": 10, "allowed_token_ids": (40, 41, 42, 43, 44, 45)},
    {"temperature": 1.0, "seed": 11, "allowed_token_ids": (40, 41, 42), "stop_token_ids": (42,), "min_tokens": 9},
    {"temperature": 1.0, "seed": 12, "choice_index": 3},
    {"temperature": 0.0, "prompt_logprobs": 2},
]


class Asking:
    """A rank, and what it has said."""

    def __init__(self, directory, method, worker="cpu", **settings):
        fields = {"max_num_seqs": 16, "speculation_method": method, **settings}
        self.rank = SleepingRank(directory, worker, keeps=False, **fields)

    def say(self, wishes, *, prompt=PERIOD, predictions=None, resumed=None, together=True, salt=""):
        """Return the outputs to each wish as (tokens, log-probabilities, reason), and how many passes were run."""
        messages = self.rank._sent
        start, names = len(messages), []
        for number, wish in enumerate(wishes):
            names.append(f"d{start}-{number}")
            sampling = make_sampling(**{"max_tokens": 24, **wish})
            predicted = predictions[number] if predictions else []
            known = resumed[number] if resumed else []
            self.rank.controller.handle(
                AddRequest(
                    names[-1],
                    list(prompt),
                    sampling,
                    list(known),
                    cache_salt=salt,
                    prediction_token_ids=list(predicted),
                )
            )
            if not together:
                self.finish()
        self.finish()
        told = [message for message in messages[start:] if isinstance(message, StepOutputs)]
        assert not [message.failed | message.refused for message in told if message.failed or message.refused]
        return [gather(told, name) for name in names], told

    def finish(self):
        while self.rank.controller.has_work:
            self.rank.controller.step()
        self.rank.controller.rest()

    def close(self):
        self.rank.close()


def gather(messages, name):
    """Return all that was said to one request."""
    outputs = [output for message in messages for output in message.outputs if output.request_id == name]
    tokens = [token for output in outputs for token in output.token_ids]
    logprobs = [row for output in outputs for row in output.logprobs or []]
    prompt = [row for output in outputs for row in output.prompt_logprobs or []]
    return tokens, logprobs, prompt, outputs[-1].finish_reason


def count(messages):
    """Return how many draft tokens were scored, and how many were taken."""
    counts = [message.drafts for message in messages if message.drafts is not None]
    return sum(each.num_draft_tokens for each in counts), sum(sum(each.num_accepted_tokens_per_pos) for each in counts)


def corrupt(tokens, every):
    """Return a prediction that is wrong now and then."""
    return [(token + 1) % 200 if i % every == every - 1 else token for i, token in enumerate(tokens)]


def same_but_rounding(said, truth):
    """Compare what was said; probabilities of torch's sums may differ in their last bits with the number of rows."""
    for (tokens, logprobs, prompt, reason), (true_tokens, true_logprobs, true_prompt, true_reason) in zip(
        said, truth, strict=True
    ):
        assert (tokens, reason) == (true_tokens, true_reason)
        for rows, true_rows in ((logprobs, true_logprobs), (prompt, true_prompt)):
            assert [row.sampled for row in rows] == pytest.approx([row.sampled for row in true_rows], abs=1e-5)


@pytest.fixture(scope="module")
def truth(tiny_model):
    """Return what a rank without drafts says to each of ASKED, alone, on our kernels."""
    asking = Asking(tiny_model, "off")
    said, told = asking.say(ASKED, together=False)
    assert count(told) == (0, 0)
    asking.close()
    return said


@pytest.mark.parametrize("way", WAYS)
def test_with_right_and_wrong_drafts_every_kind_of_sampling_says_the_same(tiny_model, truth, way):
    asking = Asking(tiny_model, "ngram", **WAYS[way])
    for every in (1, 3, 100):
        predictions = [corrupt(tokens, every) for tokens, *_ in truth]
        for together in (True, False):
            said, told = asking.say(ASKED, predictions=predictions, together=together)
            same_but_rounding(said, truth)
            scored, taken = count(told)
            assert together or scored > taken, "beside many a row is not worth its time"
            assert together or every == 1 or taken > 0
    asking.close()


def test_right_predictions_save_passes_and_are_counted(tiny_model, truth):
    asking = Asking(tiny_model, "ngram", num_speculative_tokens=7)
    (tokens, *_), *_ = truth
    said, told = asking.say(ASKED[:1], predictions=[tokens])
    assert said == truth[:1]
    outputs = [output for message in told for output in message.outputs]
    accepted = sum(output.accepted_prediction_tokens for output in outputs)
    assert len(outputs) < len(tokens) / 3
    assert accepted == len(tokens) - len(outputs), "each pass brings one token that nobody proposed"
    assert not sum(output.rejected_prediction_tokens for output in outputs)
    asking.close()


def test_resumed_after_any_token_it_says_the_rest(tiny_model, truth):
    asking = Asking(tiny_model, "ngram")
    for wish, (tokens, *_) in zip(ASKED[:3], truth[:3], strict=True):
        known = [tokens[:count_known] for count_known in range(len(tokens))]
        predictions = [corrupt(tokens, 5)] * len(known)
        said, _ = asking.say([wish] * len(known), resumed=known, predictions=predictions)
        assert [rest for rest, *_ in said] == [tokens[len(before) :] for before in known]
    asking.close()


@pytest.mark.parametrize("num_tokens", [16, 48])
def test_preempted_and_in_chunks_they_say_the_same(tiny_model, truth, num_tokens):
    asking = Asking(tiny_model, "ngram", max_num_batched_tokens=num_tokens, swap_space_bytes=1 << 20)
    wishes, true = ASKED[:5], truth[:5]
    said, told = asking.say(wishes * 3, predictions=[corrupt(tokens, 4) for tokens, *_ in true] * 3)
    assert said == true * 3
    assert asking.rank.has_swapped
    assert count(told)[1] > 0
    asking.close()


def test_a_prefix_of_taken_drafts_is_found_and_right(tiny_model, truth):
    asking = Asking(tiny_model, "ngram")
    (tokens, *_), *_ = truth
    longer = [*PERIOD, *tokens[:13]]
    plain, _ = asking.say(ASKED[:1], prompt=longer)
    asking.rank.forget()
    asking.say(ASKED[:1], predictions=[corrupt(tokens, 6)])
    again, told = asking.say(ASKED[:1], prompt=longer)
    assert again == plain
    assert max(output.cached_tokens for message in told for output in message.outputs) > len(PERIOD) + 4
    asking.close()


def test_after_a_sleep_they_say_the_same(tiny_model, truth):
    asking = Asking(tiny_model, "ngram")
    for level in (1, 2):
        predictions = [corrupt(tokens, 4) for tokens, *_ in truth]
        same_but_rounding(asking.say(ASKED, predictions=predictions)[0], truth)
        asking.rank.sleep(level)
        asking.rank.wake()
    same_but_rounding(asking.say(ASKED, predictions=predictions)[0], truth)
    asking.close()


def test_who_asks_again_is_told_the_same_in_fewer_passes_and_nobody_else_is(tiny_model, truth):
    asking = Asking(tiny_model, "suffix", num_speculative_tokens=7)
    for wish, true in zip(ASKED[:4], truth[:4], strict=True):
        passes = []
        for salt in ("a", "a", "b"):
            said, told = asking.say([wish], salt=salt)
            same_but_rounding(said, [true])
            passes.append(sum(bool(output.token_ids) for message in told for output in message.outputs))
        first, again, other = passes
        assert again < 0.6 * first
        assert other > again
    assert asking.rank.command(ResetPrefixCache()) == ""
    said, told = asking.say(ASKED[1:2], salt="a")
    same_but_rounding(said, truth[1:2])
    assert sum(bool(output.token_ids) for message in told for output in message.outputs) > 0.6 * len(said[0][0])
    asking.close()
