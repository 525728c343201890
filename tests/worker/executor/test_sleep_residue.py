"""What sleeps leave behind, measured from the system in processes of their own."""

import json
import subprocess
import sys
from contextlib import ExitStack

import pytest

from dormouse_worker.executor.testing import CACHE_BYTES
from dormouse_worker.model.testing import write_tiny_model

pytestmark = pytest.mark.timeout(400)  # importing everything takes ten seconds of a core where no bytecode is cached

MIB = 1 << 20
# The kit's program, which imports what a worker imports, as a worker does
PROGRAM = """
import runpy
from dormouse_worker.model.slim_imports import import_slim

import_slim()
runpy.run_module("dormouse_worker.executor.testing", run_name="__main__", alter_sys=True)
"""
LARGER = {"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 1}  # 28 MiB of weights
SMALLER = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 1}  # 8 MiB


def run_alone(*jobs):
    """Run the kit's program once for each job (directory, device, levels), side by side; return what they told."""
    with ExitStack() as stack:
        programs = []
        for directory, device, levels in jobs:
            program = [sys.executable, "-c", PROGRAM, str(directory), device]
            programs.append(
                stack.enter_context(subprocess.Popen([*program, *map(str, levels)], stdout=subprocess.PIPE, text=True))
            )
            stack.callback(programs[-1].kill)
        outputs = [program.communicate()[0] for program in programs]
    assert [program.returncode for program in programs] == [0] * len(programs)
    return [json.loads(output) for output in outputs]


def spread(rounds, field):
    values = [told[field] for told in rounds]
    return max(values) - min(values)


def growth(rounds, field):
    """Return how much more the last rounds have than the first: the least of ten, as joined threads end a bit later."""
    values = [told[field] for told in rounds]
    return min(values[-10:]) - min(values[:10])


def test_a_sleep_on_the_cpu_returns_weights_and_cache_to_the_kernel(tmp_path):
    """28 MiB of weights and 16 MiB of touched cache, as the process's resident memory; pages of files come and go."""
    (rounds,) = run_alone((write_tiny_model(tmp_path, **LARGER), "cpu", [2] * 8))
    assert all(told["freed_bytes"] > 0.75 * (told["weights_bytes"] + CACHE_BYTES) for told in rounds), rounds
    assert len({token for told in rounds for token in (told["before"], told["after"])}) == 1
    assert spread(rounds[1:], "anonymous_bytes") < 4 * MIB


@pytest.mark.slow  # half a minute of a core; that a sleep returns its memory is told above
def test_a_hundred_sleeps_leave_no_more_than_a_process_that_computed_once(tmp_path):
    tiny, smaller = write_tiny_model(tmp_path / "tiny"), write_tiny_model(tmp_path / "smaller", **SMALLER)
    rounds, (once,) = run_alone((smaller, "fake", [1, 2] * 50), (tiny, "fake", []))
    light, deep = rounds[2::2], rounds[3::2]
    for same in (light, deep):
        assert spread(same, "resident_bytes") < 0.01 * same[0]["resident_bytes"]
        assert [growth(same, field) for field in ("num_files", "num_threads")] == [0, 0]
    assert deep[-1]["resident_bytes"] <= 1.05 * once["resident_bytes"]
    assert light[-1]["resident_bytes"] - light[-1]["host_copy_bytes"] <= 1.05 * once["resident_bytes"]
    assert len({token for told in rounds for token in (told["before"], told["after"])}) == 1
