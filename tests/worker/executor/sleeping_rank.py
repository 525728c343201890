"""A controller over a real executor that sleeps and wakes by commands, and what it says after them."""

from __future__ import annotations

import itertools

from dormouse_worker.common.commands import (
    TAGS,
    InitializeCache,
    PrepareWakeUp,
    ResetPrefixCache,
    Shutdown,
    Sleep,
    WakeUp,
)
from dormouse_worker.common.host import Host
from dormouse_worker.common.ipc import AddRequest, CommandRequest, CommandResult, EngineStatus, State, StepOutputs
from dormouse_worker.engine.controller import Controller
from dormouse_worker.engine.testing import make_sampling
from dormouse_worker.executor.single_process import SingleProcessExecutor
from dormouse_worker.executor.testing import make_settings
from dormouse_worker.executor.worker.wrapper import BARE_CLASS

WORKERS = {
    "cpu": "dormouse_worker.executor.worker.cpu_worker.CpuWorker",
    "own memory": "dormouse_worker.executor.testing.FakeDeviceWorker",
}
EVERY_WORKER = {**WORKERS, "no torch": BARE_CLASS}
PROMPTS = ([*range(10, 35)], [*range(90, 131)])  # six blocks and a token, ten and one: what the golden pass writes to


class Outcome:
    """What came of requests, by name: tokens with their log-probabilities, known tokens, reasons of failure."""

    def __init__(self, messages):
        self.said, self.num_cached, self.failed = {}, {}, {}
        self.num_odd = sum(message.not_finite for message in messages)
        for message in messages:
            self.failed |= message.failed
            for output in message.outputs:
                name = output.request_id
                rows = output.logprobs or [None] * len(output.token_ids)
                self.said.setdefault(name, []).extend(zip(output.token_ids, rows, strict=True))
                self.num_cached.setdefault(name, output.cached_tokens)


def is_result(message, command_id):
    return isinstance(message, CommandResult) and message.command_id == command_id


class MovingExecutor(SingleProcessExecutor):
    """Counts the blocks that passes copy to host memory and back."""

    num_out = num_in = 0

    def execute_model(self, batch):
        self._count(batch)
        return super().execute_model(batch)

    def submit(self, batch):
        self._count(batch)
        return super().submit(batch)

    def _count(self, batch):
        self.num_out += len(batch.swap_out)
        self.num_in += len(batch.swap_in)


class SleepingRank:
    """One rank in READY with 40 blocks of 4 tokens, or as many as are wanted.

    `truths` is what it answers to each prompt while nothing has slept, by the number of tokens that it knew already.
    """

    def __init__(self, directory, worker, *, keeps, num_blocks=40, starts=True, clock=lambda: 0.0, **settings):
        fields = {
            "keep_prefix_cache": keeps,
            "worker_cls": EVERY_WORKER[worker],
            "max_num_batched_tokens": 64,
            **settings,
        }
        self.keeps = keeps
        self._sent, self._numbers = [], itertools.count()
        executor = MovingExecutor(make_settings(directory, **fields), {}, Host())
        self.controller = Controller(executor._settings, executor, send=self._sent.append, clock=clock)
        self.controller.start()
        if starts:
            self.begin(num_blocks)

    def agree(self, num_blocks):
        """Agree on so many blocks, and on all that the host's swap space holds."""
        assert self.command(InitializeCache(num_blocks, self.status.report.num_cpu_blocks)) == ""

    def begin(self, num_blocks=40):
        self.agree(num_blocks)
        self.truths = [{cached: said for said, cached in (self.ask(prompt), self.ask(prompt))} for prompt in PROMPTS]
        self.forget()

    @property
    def status(self):
        return next(message for message in reversed(self._sent) if isinstance(message, EngineStatus))

    @property
    def preemptions(self):
        return self.controller._engine._scheduler.counters.preemptions

    @property
    def has_swapped(self):
        """Whether blocks went to host memory and came back."""
        executor = self.controller._executor
        return executor.num_out >= executor.num_in > 0

    @property
    def module(self):
        """The module whose parameters are what is computed with."""
        return self.controller._executor._wrapper._worker._model.module

    @property
    def is_ready(self):
        return self.controller.state is State.READY

    def command(self, command):
        """Run a command; return the reason of its refusal."""
        return self.result_of(command).error_reason

    def result_of(self, command):
        """Run a command to its end; return what came of it."""
        start = len(self._sent)
        self.controller.handle(CommandRequest(7, command))
        while not (results := [each for each in self._sent[start:] if is_result(each, 7)]):
            self.controller.step()
        (result,) = results
        return result

    def sleep(self, level, tags=TAGS):
        assert self.command(Sleep(level, tuple(tags))) == ""

    def wake(self, tags=TAGS):
        assert self.command(WakeUp(tuple(tags))) == ""

    def prepare_and_take_back(self, tags=TAGS):
        """Reserve, and give back as the front does when nobody wakes."""
        assert self.command(PrepareWakeUp(tuple(tags))) == ""
        self.sleep(1, self.status.sleeping_tags)

    def forget(self):
        assert self.command(ResetPrefixCache()) == ""

    def ask(self, prompt):
        """Return the tokens that follow with their log-probabilities, and how many of the prompt were known."""
        outcome = self.ask_together({f"r{next(self._numbers)}": prompt}, logprobs=2)
        assert not outcome.failed
        (said,), (num_cached,) = outcome.said.values(), outcome.num_cached.values()
        return said, num_cached

    def refusal(self, prompt, **sampling):
        """Return why a request ends without an answer."""
        outcome = self.ask_together({f"r{next(self._numbers)}": prompt}, **sampling)
        assert not any(outcome.said.values())
        (why,) = outcome.failed.values()
        return why

    def ask_together(self, prompts, **sampling):
        """Ask all of these, by name, and step until each has an end."""
        start = len(self._sent)
        for name, prompt in prompts.items():
            self.controller.handle(AddRequest(name, list(prompt), make_sampling(**{"max_tokens": 3, **sampling})))
        while self.controller.has_work:
            self.controller.step()
        self.controller.rest()
        return Outcome([message for message in self._sent[start:] if isinstance(message, StepOutputs)])

    def check_answer(self, number):
        """Ask one of the prompts; return how much of it was known."""
        said, num_cached = self.ask(PROMPTS[number])
        assert said == self.truths[number][num_cached]
        return num_cached

    def close(self):
        assert self.command(Shutdown()) == ""
