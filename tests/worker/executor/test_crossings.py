"""Everything at once: models, ranks, requests and what befalls them drawn at random; the tokens are a plain rank's.

Weights and caches of 8 and 4 bits, images, adapters of all kinds, grammars, drafts of every kind, prefixes, stores,
swap space, chunks, priorities, tenants; streams that are cut after any pass and go on at another rank, ranks that sleep
in between.
A sample of it runs always; `DORMOUSE_RECORD=crossings python -m pytest -m slow` with this file runs all.
"""

from __future__ import annotations

import itertools
import random
import time

import pytest

from tests.worker.executor import crossing_draws as draws
from tests.worker.executor.crossing_ranks import Answer, CrossedRank, count_requests

ENDS = {"stop", "length"}
CASES = [*draws.OF_OUR_KERNELS * 8, *draws.OF_TORCH, *draws.SEEING * 2]
NUM_REQUESTS = 100  # a case
TOGETHER = 4, 8, 16  # at once: the more, the more are preempted, and the fewer have room for drafts
SAMPLE = [(0, "llama"), (14, "qwen3")]  # seeds
MOST_PASSES = 20_000  # of one case: who needs more hangs


class Stream:
    """A request on its way over ranks."""

    def __init__(self, wish, truth, predicted):
        self.wish, self.truth, self.predicted = wish, truth, predicted
        self.said = Answer()
        self.rank, self.name, self.has_moved = None, "", False

    def go_on(self, rank):
        self.rank = rank
        self.name = rank.begin(self.wish, self.said.tokens, self.predicted)

    def check(self, within):
        """Check that it said what is true."""
        said, truth = self.said, self.truth
        assert (said.tokens, said.ended) == (truth.tokens, truth.ended), (self.wish, self.rank.label)
        pairs = [(said.logprobs, truth.logprobs)]
        if not self.has_moved and truth.ended in ENDS:  # who is refused may have heard of a part of its prompt
            pairs.append((said.of_prompt, truth.of_prompt))
        for rows, true_rows in pairs:
            assert len(rows) == len(true_rows), (len(rows), len(true_rows), said.tokens, self.wish, self.rank.label)
            for row, true in zip(rows, true_rows, strict=True):
                close = pytest.approx([true.sampled, *true.named], rel=0, abs=within)
                assert [row.sampled, *row.named] == close, (self.wish, self.rank.label)


def ask_alone(model, wishes):
    """Return what a rank with nothing crossed answers to each, one after the other."""
    rank = CrossedRank(model, max_num_batched_tokens=256, enable_prefix_caching=False)
    truth = []
    for wish in wishes:
        answer = Answer()
        name = rank.begin(wish)
        rank.hear({name: answer})
        while not answer.ended:
            rank.step({name: answer})
        truth.append(answer)
    rank.close()
    return truth


class Crossing:
    """Ranks of one model and the streams that wander over them."""

    def __init__(self, seed, architecture, folder):
        self.draw = random.Random(seed)
        self.folder = folder
        self.model = draws.draw_model(self.draw, folder, architecture)
        self.ranks = []
        for _ in range(3):
            worker, num_blocks, settings = draws.draw_rank(self.draw, self.model, folder)
            self.ranks.append(CrossedRank(self.model, worker, num_blocks, **settings))
            self.ranks[-1].label = (worker, num_blocks, settings)
        self.counts = dict.fromkeys(("requests", "moves", "naps", "leaves", "cuts", "disturbed", "refused"), 0)

    def run(self, num_requests, together):
        """Send so many over the ranks, so many at a time."""
        wishes = draws.draw_wishes(self.draw, self.model, num_requests)
        truth = ask_alone(self.model, wishes)
        self.counts["refused"] += sum(true.ended not in ENDS for true in truth)
        waiting = [
            Stream(wish, true, draws.draw_prediction(self.draw, true.tokens))
            for wish, true in zip(wishes, truth, strict=True)
        ]
        self.counts["requests"] += num_requests
        within = 0.0 if self.model.is_ours else 1e-4
        open_ones, passes = [], itertools.count()
        while waiting or open_ones:
            assert next(passes) < MOST_PASSES, [(s.wish, s.rank.label, s.rank.controller) for s in open_ones]
            while waiting and len(open_ones) < together:
                open_ones.append(waiting.pop())
                open_ones[-1].go_on(self.draw.choice(self.ranks))
            rank = self.draw.choice([stream.rank for stream in open_ones])
            answers = {stream.name: stream.said for stream in open_ones if stream.rank is rank}
            for _ in range(self.draw.randrange(1, 6)):
                rank.step(answers)
            if self.draw.random() < 0.15:
                self.befall(rank, answers, open_ones)
            for stream in [each for each in open_ones if each.said.ended]:
                stream.check(within)
                open_ones.remove(stream)
        return self

    def befall(self, rank, answers, open_ones):
        """Let something happen to a rank or to a stream of it; whoever was cut goes on elsewhere, or there."""
        what = self.draw.choice(("naps", "leaves", "cuts", "cuts", "disturbed"))
        self.counts[what] += 1
        here = [stream for stream in open_ones if stream.rank is rank]
        if what == "disturbed":
            rank.disturb(self.draw, answers)
            return
        if what == "cuts":
            here = [self.draw.choice(here)]
            rank.cut_off([stream.name for stream in here if not stream.said.ended], answers)
        elif what == "naps":
            rank.nap(self.draw, answers)
        else:
            rank.leave(self.draw, answers)
        for stream in here:
            if stream.said.ended in {"", "abort"}:
                stream.said.ended, stream.has_moved = "", True
                stream.go_on(self.draw.choice(self.ranks))
                self.counts["moves"] += 1

    def close(self):
        """End the ranks, which hold nothing; return what was done."""
        for rank in self.ranks:
            rank.check_empty()
        found = {
            **self.counts,
            "preempted": sum(rank.preemptions for rank in self.ranks),
            "swapped": sum(rank.has_swapped for rank in self.ranks),
            "drafts and taken": [(rank.label[2]["speculation_method"], *rank.drafts) for rank in self.ranks],
        }
        for rank in self.ranks:
            rank.close()
        return found


def run_case(seed, architecture, folder, num_requests, together):
    """Run one case; return what to record of it."""
    before, begun_s = count_requests(), time.monotonic()
    case = Crossing(seed, architecture, folder)
    try:
        found = case.run(num_requests, together).close()
    except BaseException as error:
        error.add_note(f"seed {seed}: {case.model}, {[rank.label for rank in case.ranks]}")
        raise
    del case
    assert count_requests() <= before
    return {"seed": seed, **found, "seconds": round(time.monotonic() - begun_s, 1)}


@pytest.mark.parametrize(("seed", "architecture"), SAMPLE)
def test_a_sample_says_what_a_plain_rank_says(tmp_path, seed, architecture):
    run_case(seed, architecture, tmp_path, num_requests=16, together=16)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("number", "architecture"), [*enumerate(CASES)])
def test_whatever_is_drawn_says_what_a_plain_rank_says(tmp_path, number, architecture, request, record_property):
    seed = 1000 * (request.config.getoption("randomly_seed", 0) or 0) + number
    together = TOGETHER[number % len(TOGETHER)]
    for name, value in run_case(seed, architecture, tmp_path, NUM_REQUESTS, together).items():
        record_property(name, value)
