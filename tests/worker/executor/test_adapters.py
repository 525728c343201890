"""Adapters on a real rank: answers are theirs over every sleep, and the base says what it said."""

from __future__ import annotations

import itertools
import threading
from functools import partial

import msgspec
import pytest

from dormouse_worker.common.adapters import AdapterInfo, AdapterList
from dormouse_worker.common.commands import AbortAll, AddLora, CheckHealth, ListLoras, PinLora, RemoveLora, Shutdown
from dormouse_worker.common.ipc import AddRequest, CommandRequest, CommandResult
from dormouse_worker.engine.testing import make_sampling
from dormouse_worker.model.testing_adapters import write_adapter, write_soft_prompt
from tests.worker.executor.sleeping_rank import PROMPTS, WORKERS, Outcome, SleepingRank, StepOutputs

SETTINGS = {"enable_lora": True, "max_loras": 2, "max_cpu_loras": 3}


class AdaptedRank(SleepingRank):
    """A rank with two adapters: each a LoRA, or `soft` prompts of vectors, and of keys and values."""

    def __init__(self, directory, folder, worker, *, keeps=False, soft=False, **settings):
        super().__init__(directory, worker, keeps=keeps, **{**SETTINGS, **settings})
        write = partial(write_adapter, targets=("q_proj", "v_proj", "down_proj"))
        kinds = {"a": "PROMPT_TUNING", "b": "PREFIX_TUNING"}
        self.paths = [
            write_soft_prompt(folder / name, directory, kind=kind)
            if soft
            else write(folder / name, directory, seed=seed)
            for seed, (name, kind) in enumerate(kinds.items())
        ]
        self.digests = [self.add(path).digest for path in self.paths]
        self.names = itertools.count()

    def value(self, command):
        result = self.result_of(command)
        assert result.error_reason == "", result.error_message
        return result.value

    def add(self, path):
        return msgspec.json.decode(self.value(AddLora(str(path))), type=AdapterInfo)

    def list(self):
        return msgspec.json.decode(self.value(ListLoras()), type=AdapterList)

    def start(self, digest, prompt=PROMPTS[0], prediction=(), **sampling):
        name = f"x{next(self.names)}"
        wish = make_sampling(**{"max_tokens": 5, **sampling})
        self.controller.handle(
            AddRequest(name, list(prompt), wish, adapter=digest, prediction_token_ids=list(prediction))
        )
        return name

    def finish(self, start):
        while self.controller.has_work:
            self.controller.step()
        self.controller.rest()
        return Outcome([message for message in self._sent[start:] if isinstance(message, StepOutputs)])

    def answers(self):
        """Return what the base and each adapter say, all in one batch."""
        start = len(self._sent)
        names = [self.start(digest) for digest in ("", *self.digests)]
        outcome = self.finish(start)
        return [outcome.said[name] for name in names]


@pytest.fixture
def make_rank(tiny_model, tmp_path):
    made = []

    def make(worker="cpu", **settings):
        made.append(AdaptedRank(tiny_model, tmp_path, worker, **settings))
        return made[-1]

    yield make
    for rank in made:
        rank.close()


@pytest.mark.parametrize("soft", [False, True], ids=["lora", "soft"])
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("worker", WORKERS)
def test_answers_are_the_same_after_every_sleep(make_rank, worker, keeps, soft):
    rank = make_rank(worker, keeps=keeps, soft=soft)
    before = rank.answers()
    assert len({str(said) for said in before}) == 3
    for level in (1, 2, 1):
        rank.sleep(level)
        rank.wake()
        assert rank.answers() == before
    rank.forget()
    assert rank.answers() == before
    assert make_rank(worker, soft=soft).answers() == before  # at level 3 a process ends, and another one begins


def tokens_of(rank, predictions=((), (), ()), **sampling):
    """Return what the base and each adapter say to a prompt, all in one batch, and how many drafts were right."""
    start = len(rank._sent)
    asked = zip(("", *rank.digests), predictions, strict=True)
    names = [rank.start(digest, prediction=predicted, max_tokens=20, **sampling) for digest, predicted in asked]
    outcome = rank.finish(start)
    counts = [message.drafts for message in rank._sent[start:] if isinstance(message, StepOutputs) and message.drafts]
    num_right = sum(sum(each.num_accepted_tokens_per_pos) for each in counts)
    return [[token for token, _ in outcome.said[name]] for name in names], num_right


@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 3}])
@pytest.mark.parametrize("soft", [False, True], ids=["lora", "soft"])
def test_with_drafts_base_and_adapters_say_what_they_say_without(make_rank, worker, sampling, soft):
    truth, _ = tokens_of(make_rank(worker, soft=soft, max_num_seqs=32), **sampling)
    assert len({str(tokens) for tokens in truth}) == 3
    drafting = make_rank(worker, soft=soft, max_num_seqs=32, speculation_method="ngram")
    predictions = [[token + (place % 5 == 4) for place, token in enumerate(tokens)] for tokens in truth]
    said, num_right = tokens_of(drafting, predictions, **sampling)
    assert said == truth
    assert num_right > 0


def test_an_adapter_that_is_gone_at_a_wake_is_refused_by_reason_and_the_base_serves(make_rank):
    rank = make_rank()
    base, _, kept = rank.answers()
    rank.paths[0].rename(rank.paths[0].parent / "elsewhere")
    rank.sleep(2)
    rank.wake()
    assert "no such directory" in rank.list().lost[rank.digests[0]]
    start = len(rank._sent)
    lost, fine, other = (rank.start(digest) for digest in (rank.digests[0], "", rank.digests[1]))
    outcome = rank.finish(start)
    assert "no such directory" in outcome.failed[lost]
    assert [outcome.said[fine], outcome.said[other]] == [base, kept]


def test_a_removed_adapter_serves_who_began_with_it(make_rank):
    rank = make_rank()
    expected = rank.answers()[1]
    start = len(rank._sent)
    name = rank.start(rank.digests[0])
    rank.controller.step()
    rank.value(RemoveLora(rank.digests[0]))
    late = rank.start(rank.digests[0])
    outcome = rank.finish(start)
    assert outcome.said[name] == expected
    assert "is not loaded" in outcome.failed[late]
    assert [info.digest for info in rank.list().loaded] == rank.digests[1:]


def test_a_third_adapter_takes_the_place_of_a_removed_one(make_rank, tiny_model, tmp_path):
    rank = make_rank(max_cpu_loras=2)
    third = write_adapter(tmp_path / "c", tiny_model, seed=7)
    assert rank.command(AddLora(str(third))) == "AdapterLimit"
    rank.value(RemoveLora(rank.digests[0]))
    rank.digests[0] = rank.add(third).digest
    assert len({str(said) for said in rank.answers()}) == 3


def test_pins_are_listed(make_rank):
    rank = make_rank()
    rank.value(PinLora(rank.digests[0]))
    assert [info.is_pinned for info in rank.list().loaded] == [True, False]
    assert rank.command(PinLora(rank.digests[1])) == "AdapterLimit"


def test_a_rank_without_adapters_says_so(tiny_model, tmp_path):
    rank = SleepingRank(tiny_model, "cpu", keeps=False)
    path = write_adapter(tmp_path / "a", tiny_model)
    assert rank.command(AddLora(str(path))) == "InvalidSettings"
    assert rank.command(CheckHealth()) == ""
    rank.close()


@pytest.mark.parametrize("settings", [{"compile_sizes": (1,)}, {"max_loras": 4, "max_cpu_loras": 3}], ids=str)
def test_what_adapters_are_not_combined_with_is_refused_by_name(tiny_model, settings):
    rank = SleepingRank(tiny_model, "cpu", keeps=False, starts=False, **{**SETTINGS, **settings})
    assert rank.status.failure_reason == "InvalidSettings"
    assert next(iter(settings)) in rank.status.failure_message.replace(
        "max_cpu_loras is 3; at least max_loras", "max_loras"
    )


@pytest.fixture
def clock():
    """A clock on which passes take so little that an adapter stops wherever it can."""
    return itertools.count(0, 1e-6).__next__


def half_read(rank, path):
    """Let a request run, and an adapter be read half; return how many messages were sent before."""
    start = len(rank._sent)
    rank.start(rank.digests[0], max_tokens=40)
    rank.controller.handle(CommandRequest(8, AddLora(str(path))))
    for _ in range(3):
        rank.controller.step()
    assert "adapter" in [thread.name for thread in threading.enumerate()]
    return start


def results(rank, start):
    return {each.command_id: each.error_reason for each in rank._sent[start:] if isinstance(each, CommandResult)}


def test_an_adapter_that_is_read_beside_passes_answers_as_one_that_is_not(make_rank, tiny_model, tmp_path, clock):
    path = write_adapter(tmp_path / "c", tiny_model, seed=7, rank=8)
    rank = make_rank(clock=clock)
    whole = make_rank()
    whole.digests[0] = whole.add(path).digest
    before = rank.answers()
    start = half_read(rank, path)
    while not results(rank, start):
        rank.controller.step()
    rank.finish(start)
    assert rank.answers() == before
    rank.digests[0] = rank.add(path).digest
    assert rank.answers() == whole.answers()
    assert "adapter" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("level", [1, 2])
def test_a_sleep_that_comes_while_one_is_read_finds_all_of_it(make_rank, tiny_model, tmp_path, level, clock):
    rank = make_rank(clock=clock)
    start = half_read(rank, write_adapter(tmp_path / "c", tiny_model, seed=7))
    assert rank.command(AbortAll()) == ""
    rank.sleep(level)
    rank.wake()
    assert results(rank, start)[8] == ""
    assert len(rank.list().loaded) == 3


def test_the_end_of_a_worker_leaves_what_is_half_read(make_rank, tiny_model, tmp_path, clock):
    rank = make_rank(clock=clock)
    half_read(rank, write_adapter(tmp_path / "c", tiny_model, seed=7))
    assert rank.command(Shutdown()) == ""
    for thread in threading.enumerate():
        if thread.name == "adapter":  # at its next pause at the latest, if the machine kept it from one
            thread.join(timeout=30)
    assert "adapter" not in [thread.name for thread in threading.enumerate()]
