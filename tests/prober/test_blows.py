"""Which processes are killed: those of the pod's containers and no others."""

from __future__ import annotations

import subprocess
import sys

import pytest

from localkube.processes import is_alive, read_pid_file, start, stop_by_file
from localkube.spec import Paths
from localkube.start import log_file, pid_file
from tests.e2e.kit import wait_until
from tests.prober.blows import kill, processes_of, without

UID = "5d6c8f0e-1111-2222-3333-444455556666"
POD = {"metadata": {"uid": UID}}


def add_process(proc, pid, command, group):
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "comm").write_text(command + "\n", "utf-8")
    (folder / "cgroup").write_text(f"3:memory:{group}\n", "utf-8")


def test_the_processes_of_a_pod_are_found_by_their_cgroups_without_the_one_that_holds_its_network(tmp_path):
    add_process(tmp_path, 10, "python", f"/dormouse/kubepods/burstable/pod{UID}/abc")
    add_process(tmp_path, 11, "pause", f"/dormouse/kubepods/burstable/pod{UID}/def")
    add_process(tmp_path, 12, "python", "/dormouse/kubepods/burstable/podother/abc")
    (tmp_path / "13").mkdir()  # it has just ended
    (tmp_path / "self").mkdir()
    assert processes_of(POD, tmp_path) == [10]


def test_a_killed_process_gets_no_chance_to_end_in_order(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        add_process(tmp_path, child.pid, "python", f"/pod{UID}/abc")
        assert kill([POD], tmp_path) == 1
        assert child.wait(timeout=30) == -9


def test_a_process_that_ended_meanwhile_is_no_error(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait(timeout=30)
    add_process(tmp_path, child.pid, "python", f"/pod{UID}/abc")
    assert kill([POD], tmp_path) == 1


TELL = "import os, sys, time; print(sys.argv[1], os.environ['WHO'], flush=True); time.sleep(600)"


@pytest.fixture
def component(tmp_path):
    """Start a component of a cluster that is none. It has said how, so its command line is its own by now."""
    paths = Paths(tmp_path)
    argv, files = [sys.executable, "-c", TELL, "as it was"], (log_file(paths, "some"), pid_file(paths, "some"))
    assert start(argv, log=files[0], pid_file=files[1], env={"WHO": "=me="})
    wait_until(lambda: files[0].read_text("utf-8") == "as it was =me=\n")
    yield paths
    stop_by_file(files[1], grace_s=10)


def identity(paths):
    return read_pid_file(pid_file(paths, "some"))


async def test_a_component_is_away_while_the_context_lasts_and_then_back_as_it_was(component):
    before = identity(component)
    async with without(component, "some"):
        assert not is_alive(before)
    assert is_alive(identity(component))
    assert identity(component) != before
    wait_until(lambda: log_file(component, "some").read_text("utf-8") == "as it was =me=\n" * 2)


async def test_it_comes_back_after_a_failure_too(component):
    with pytest.raises(ZeroDivisionError):
        async with without(component, "some"):
            raise ZeroDivisionError
    assert is_alive(identity(component))


async def test_a_component_that_does_not_run_is_named(component):
    stop_by_file(pid_file(component, "some"), grace_s=10)
    with pytest.raises(RuntimeError, match="names no running some: is the local cluster up"):
        async with without(component, "some"):
            pass
