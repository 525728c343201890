"""A controller in each of its states, for every test that asks what it does there."""

import pytest

from dormouse_worker.common.commands import InitializeCache, Sleep
from dormouse_worker.common.errors import ModelNotFound
from dormouse_worker.common.ipc import CommandRequest, CommandResult, EngineStatus
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine import neighbours
from dormouse_worker.engine.controller import Controller
from dormouse_worker.engine.testing import ManualClock
from dormouse_worker.engine.testing_executor import FakeExecutor
from dormouse_worker.engine.testing_stages import StagedFakeExecutor


def is_result(message, command_id):
    return isinstance(message, CommandResult) and message.command_id == command_id


class Rank:
    """A controller with its fake worker and everything it sent."""

    def __init__(self, executor_class=FakeExecutor, stages=1, **settings):
        self.clock = ManualClock()
        self.executor = executor_class(clock=self.clock)
        self.sent = []
        settings = EngineSettings(
            model="/models/m",
            max_num_seqs=4,
            max_num_batched_tokens=8,
            block_size=4,
            pipeline_parallel_size=stages,
            **settings,
        )
        self.controller = Controller(settings, self.executor, send=self.sent.append, clock=self.clock)

    @property
    def states(self):
        return [str(message.state) for message in self.sent if isinstance(message, EngineStatus)]

    @property
    def status(self):
        return next(message for message in reversed(self.sent) if isinstance(message, EngineStatus))

    def command(self, command):
        """Run a command to its end; return (reason, message)."""
        start = len(self.sent)
        self.controller.handle(CommandRequest(7, command))
        while not (results := [each for each in self.sent[start:] if is_result(each, 7)]):
            self.controller.step()
        (result,) = results
        return result.error_reason, result.error_message

    def fail_next(self, method, error):
        self.executor.fail_once[method] = error


@pytest.fixture
def rank():
    return Rank()


@pytest.fixture
def drafting():
    """A rank with a draft model, asleep."""
    rank = Rank(speculation_method="draft", speculation_model="/d")
    rank.controller.start()
    for command in (InitializeCache(10, 2), Sleep()):
        assert rank.command(command) == ("", "")
    return rank


@pytest.fixture
def profiled(rank):
    rank.controller.start()
    return rank


@pytest.fixture
def ready(profiled):
    assert profiled.command(InitializeCache(10, 2)) == ("", "")
    return profiled


@pytest.fixture
def asleep(ready):
    assert ready.command(Sleep()) == ("", "")
    return ready


@pytest.fixture
def failed(rank):
    rank.fail_next("load_model", ModelNotFound("/models/m: no such directory"))
    rank.controller.start()
    return rank


@pytest.fixture
def pipeline():
    """Return a controller in READY over two stages."""
    rank = Rank(StagedFakeExecutor, stages=2)
    rank.controller.start()
    assert rank.command(InitializeCache(10, 2)) == ("", "")
    return rank


@pytest.fixture(autouse=True)
def answers_come_before_the_next_pass(monkeypatch):
    """A store's thread may be slow on a busy machine: steps can be counted all the same."""
    monkeypatch.setattr(neighbours, "TURN_S", 60.0)
