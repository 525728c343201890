"""An executor that has an engine of its own is asked for it in place of ours."""

from __future__ import annotations

from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.assembly import build_stepper
from dormouse_worker.engine.testing import ManualClock, make_report
from dormouse_worker.engine.testing_executor import FakeExecutor


class Foreign(FakeExecutor):
    """Its engine is a word."""

    def make_stepper(self):
        return "its own"


def test_an_executor_brings_its_engine():
    settings = EngineSettings(model="/models/tiny", runtime="vllm")
    assert build_stepper(settings, make_report(), (10, 0), Foreign(), clock=ManualClock()) == "its own"
    assert build_stepper(settings, make_report(), (10, 0), FakeExecutor(), clock=ManualClock()) != "its own"
