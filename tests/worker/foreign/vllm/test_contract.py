"""The stand-in for vLLM's core keeps what the real one keeps; that is asked where vLLM is installed."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from bench.peer_env import peer_python, peer_variables
from dormouse_worker.foreign.vllm.testing import StandInCore
from tests.worker.foreign.vllm.contract import CONTRACT, NUM_BLOCKS
from tools.bootstrap import ROOT


@pytest.mark.parametrize("keeps", CONTRACT, ids=lambda keeps: keeps.__name__)
def test_the_stand_in_keeps_the_contract(keeps):
    core = StandInCore()
    core.load()
    assert core.allocate(NUM_BLOCKS) == NUM_BLOCKS
    keeps(core)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_vllm_keeps_the_contract(tiny_model):
    variables = peer_variables(sorted(os.sched_getaffinity(0)), os.environ)
    paths = os.pathsep.join(str(ROOT / part) for part in ("api", "worker_image", "."))
    command = [peer_python(), "-m", "tests.worker.foreign.vllm.ask_core", tiny_model]
    done = subprocess.run(
        command, env={**variables, "PYTHONPATH": paths}, stdout=subprocess.PIPE, check=True, text=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == {}
