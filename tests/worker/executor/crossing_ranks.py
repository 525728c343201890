"""Ranks over which streams wander, and what is done to them: they sleep, leave, forget, and lose adapters."""

from __future__ import annotations

import gc
import itertools
from dataclasses import dataclass, field

import msgspec

from dormouse_worker.common.adapters import AdapterInfo
from dormouse_worker.common.commands import TAGS, AbortAll, AddLora, CheckHealth, PinLora, RemoveLora
from dormouse_worker.common.ipc import AbortRequests, AddRequest, Leave, StepOutputs
from dormouse_worker.engine.request import Request
from dormouse_worker.engine.testing import make_sampling
from dormouse_worker.executor.testing_drafts import draft_always
from tests.worker.executor.sleeping_rank import SleepingRank
from tests.worker.executor.test_drafts import count

MOST_UNDER_WAY = 3  # batches, with those who have ended in them


@dataclass
class Answer:
    """What came of a request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    of_prompt: list = field(default_factory=list)
    ended: str = ""  # a finish reason, or why it was refused

    def take(self, output):
        self.tokens += output.token_ids
        self.logprobs += output.logprobs or []
        self.of_prompt += output.prompt_logprobs or []
        self.ended = output.finish_reason or ""


class CrossedRank(SleepingRank):
    """A rank that takes any request, and any adapter of its model's."""

    def __init__(self, model, worker="cpu", num_blocks=90, **settings):
        keeps = settings.pop("keep_prefix_cache", False)
        super().__init__(model.directory, worker, keeps=keeps, starts=False, **{**model.settings, **settings})
        assert self.status.report is not None, f"{worker} {settings}: {self.status.failure_message}"
        self.agree(num_blocks)
        self.engine = self.controller._engine
        if self.engine._scheduler.speculation is not None:
            draft_always(self.engine)
        self._paths = [str(path) for path in model.adapters]
        self.digests = [self._bring(path) for path in self._paths]
        self._names = itertools.count()
        self._read = len(self._sent)

    @property
    def drafts(self):
        """How many draft tokens were scored, and how many were taken."""
        return count([message for message in self._sent if isinstance(message, StepOutputs)])

    def begin(self, wish, said=(), predicted=()):
        """Ask; return its name."""
        name = f"c{next(self._names)}"
        message = AddRequest(
            name,
            list(wish.prompt),
            make_sampling(**wish.sampling, grammar=wish.bound_by),
            list(said),
            priority=wish.priority,
            cache_salt=wish.salt,
            adapter=self.digests[wish.adapter] if wish.adapter >= 0 else "",
            prediction_token_ids=list(predicted),
            images=list(wish.images),
        )
        self.controller.handle(message)
        return name

    def step(self, answers):
        """Compute one pass, and give what has come to whose it is, by name."""
        self.controller.step()
        self.hear(answers)

    def hear(self, answers):
        """Give what has come to whose it is, by name."""
        new, self._read = self._sent[self._read :], len(self._sent)
        for message in new:
            if isinstance(message, StepOutputs):
                for output in message.outputs:
                    if output.request_id in answers:
                        answers[output.request_id].take(output)
                for name, why in (message.failed | message.refused).items():
                    if name in answers:
                        answers[name].ended = why

    def cut_off(self, names, answers):
        """Abort these, whatever is under way; return nothing of them any more."""
        self.hear(answers)
        self.controller.handle(AbortRequests(list(names)))

    def end_all(self, answers):
        """Abort everything, and be idle."""
        assert self.command(AbortAll()) == ""
        self.hear(answers)
        while self.controller.has_work:
            self.step(answers)

    def nap(self, draw, answers):
        """Sleep and wake, whole or in parts, with everything ended before."""
        self.end_all(answers)
        level = draw.choice((1, 2))
        self.sleep(level, TAGS if draw.random() < 0.6 else draw.sample(TAGS, 1))
        if level == 1 and draw.random() < 0.3:
            self.sleep(2, draw.sample(TAGS, draw.randrange(1, 3)))
        if draw.random() < 0.3:
            self.prepare_and_take_back(self.status.sleeping_tags)
        for tags in ((TAGS[0],), (TAGS[1],)) if draw.random() < 0.3 else (TAGS,):
            self.wake(tags)
        assert self.is_ready

    def leave(self, draw, answers):
        """Hand everything over, as far as it is written."""
        self.controller.handle(Leave(is_leaving=True))
        for _ in range(draw.randrange(3)):
            self.step(answers)
        self.end_all(answers)
        self.controller.handle(Leave(is_leaving=False))

    def disturb(self, draw, answers):
        """Do what changes nothing."""
        number = draw.randrange(4)
        if number == 0:
            self.forget()
        elif number == 1:
            assert self.command(CheckHealth()) == ""
        elif self.digests:
            place = draw.randrange(len(self.digests))
            if number == 2:
                assert self.command(RemoveLora(self.digests[place])) == ""
                assert self._bring(self._paths[place]) == self.digests[place]
            else:
                is_pinned = draw.random() < 0.5
                assert self.command(PinLora(self.digests[place], is_pinned)) in {"", "AdapterLimit"}
        self.hear(answers)

    def check_empty(self):
        """Check that nothing is left of anybody, once what is under way has come."""
        for _ in range(MOST_UNDER_WAY):
            self.controller.step()
        assert not self.controller.has_work
        self.controller.rest()
        scheduler = self.engine._scheduler
        assert (scheduler.num_running, scheduler.num_waiting) == (0, 0)
        assert not scheduler.adapters._references.total()
        assert not scheduler.adapters._holders.total()
        assert scheduler.swap.num_free == scheduler.swap.num_blocks

    def _bring(self, path):
        result = self.result_of(AddLora(path))
        assert result.error_reason == "", result.error_message
        return msgspec.json.decode(result.value, type=AdapterInfo).digest


def count_requests():
    """Return how many requests this process still knows."""
    gc.collect()
    return sum(type(each) is Request for each in gc.get_objects())  # isinstance asks lazy modules, which warn
