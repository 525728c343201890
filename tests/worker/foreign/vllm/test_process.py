"""The engine process of runtime vllm, where there is no vLLM: its messages, and the way to its interpreter."""

from __future__ import annotations

import sys

from dormouse_worker.common.ipc import State
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.front.engine.spawn import VLLM_LAUNCHER, vllm_argv
from tests.worker.engine_client import EngineClient


def test_an_interpreter_without_vllm_is_told_with_the_flag_that_names_another(tmp_path):
    settings = EngineSettings(model="/models/tiny", runtime="vllm")
    engine = EngineClient(settings, tmp_path / "socket", program=("-P", str(VLLM_LAUNCHER)))
    status = engine.wait_for(State.FAILED)
    assert status.failure_reason == "InvalidSettings"
    assert "No module named 'vllm': --engine-python has to name one that has vLLM" in status.failure_message
    engine.close()
    assert engine.process.wait(90) == 0


def test_settings_that_it_is_not_given_are_told_and_the_process_stays(tmp_path):
    settings = EngineSettings(model="/models/tiny", runtime="vllm", quantization="int8")
    engine = EngineClient(settings, tmp_path / "socket", program=("-P", str(VLLM_LAUNCHER)))
    assert "quantization is 'int8'" in engine.wait_for(State.FAILED).failure_message
    assert engine.process.poll() is None
    engine.close()


def test_it_is_started_by_the_interpreter_that_is_named_else_by_ours():
    assert vllm_argv("/vllm/bin/python") == ("/vllm/bin/python", "-P", str(VLLM_LAUNCHER))
    assert vllm_argv("")[0] == sys.executable
    assert VLLM_LAUNCHER.is_file()
