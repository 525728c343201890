"""Which processes are killed: those of the pod's containers and no others."""

from __future__ import annotations

import subprocess
import sys

from tests.prober.blows import kill, processes_of

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
