"""A controller over the stand-in for vLLM's core."""

from __future__ import annotations

import pytest

from dormouse_worker.common.commands import InitializeCache
from dormouse_worker.common.ipc import CommandRequest, CommandResult, EngineStatus, StepOutputs
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.controller import Controller
from dormouse_worker.engine.testing import ManualClock
from dormouse_worker.foreign.vllm.executor import VllmExecutor
from dormouse_worker.foreign.vllm.testing import StandInCore
from dormouse_worker.model.memory.arithmetic import Limit, Measured

MEMORY_BYTES = 1 << 20


class SetMeter:
    """Implements what the executor needs of `Meter`, with numbers that are set."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes

    def open(self):
        pass

    def limit(self):
        return Limit(self.total_bytes, is_known=True)

    def measure(self, weights_bytes, *, warm_up, peak):
        warm_up()
        peak()
        return Measured(weights_bytes, 1000, 2000, 0.5)


class Desk:
    """A controller, its core, and everything that it sent."""

    def __init__(self, total_bytes: int = MEMORY_BYTES, **settings: object) -> None:
        self.core = StandInCore()
        self.sent: list[object] = []
        settings = {"model": "/models/tiny", "runtime": "vllm", "gpu_memory_utilization": 0.5, **settings}
        engine = EngineSettings(**settings)
        executor = VllmExecutor(engine, lambda: self.core, SetMeter(total_bytes))
        self.controller = Controller(engine, executor, send=self.sent.append, clock=ManualClock())

    @property
    def status(self) -> EngineStatus:
        return [message for message in self.sent if isinstance(message, EngineStatus)][-1]

    def run(self, command) -> CommandResult:
        self.controller.handle(CommandRequest(1, command))
        return next(message for message in reversed(self.sent) if isinstance(message, CommandResult))

    def open(self, num_blocks: int = 40) -> None:
        self.controller.start()
        assert self.run(InitializeCache(num_blocks)).error_message == ""

    def outputs(self) -> list[StepOutputs]:
        """Return what came since it was asked last."""
        found = [message for message in self.sent if isinstance(message, StepOutputs)]
        self.sent[:] = [message for message in self.sent if not isinstance(message, StepOutputs)]
        return found

    def steps(self) -> list[StepOutputs]:
        """Return what comes until nothing is left to do."""
        while self.controller.has_work:
            self.controller.step()
        return self.outputs()


@pytest.fixture
def desk():
    desk = Desk()
    desk.open()
    return desk
