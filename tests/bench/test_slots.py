"""What the sandbox of pools runs for a pod, and the rows of what it finds."""

import asyncio
import sys
from pathlib import Path

from bench.fleet.fake_workers import _begun
from bench.slots.findings import Campaign, Placing, Switch, campaign_rows, placing_rows, switch_rows, together
from bench.slots.placing import num_nodes
from bench.slots.victims import CASES, VICTIMS, Fronts, kill, replica_of
from bench.slots.workers import arguments_of, environment_of
from bench.slots.world import Seen
from dormouse_operator.model import WorkerState
from tests.waiting import until

POD = {
    "metadata": {"name": "dusk-1-0", "uid": "u", "labels": {"inference.dormouse.dev/deployment": "dusk"}},
    "spec": {
        "containers": [
            {
                "args": ["--model=/m", "--device-grants"],
                "env": [{"name": "DORMOUSE_POD_UID", "valueFrom": {}}, {"name": "DORMOUSE_OPERATOR_KEY", "value": "k"}],
            }
        ]
    },
}


def test_a_worker_runs_as_its_container_says_on_its_own_address_and_sees_the_stand_ins():
    arguments = arguments_of(POD, "10.200.0.7")
    assert arguments[:3] == ["--model=/m", "--device-grants", "--host=10.200.0.7"]
    told = environment_of(POD, Path("/devices"))
    assert (told["DORMOUSE_POD_UID"], told["DORMOUSE_OPERATOR_KEY"]) == ("u", "k")
    assert told["STAND_IN_DEVICES"] == "/devices"


def test_who_holds_a_slot_is_who_has_it_for_good():
    seen = Seen()
    slots = [
        {"phase": "Held", "holders": [{"replica": "dusk[0]"}]},
        {"phase": "Yielding", "holders": [{"replica": "dawn[0]"}]},
        {"phase": "Free"},
    ]
    seen.pool({"metadata": {"name": "shared"}, "status": {"slots": slots}}, is_gone=False)
    assert seen.holders() == ["dusk"]
    seen.pod(POD, is_gone=False)
    assert seen.pods_of("dusk") == [POD]
    seen.pod(POD, is_gone=True)
    assert seen.pods_of("dusk") == []


def test_the_goals_of_a_switch_are_for_all_that_the_request_waits():
    found = [Switch(total_s=seconds, sleep_s=0.01, wake_s=0.02, start="level1") for seconds in (0.1, 0.12, 0.5)]
    p50, p95, beyond, *_ = switch_rows(found)
    assert (p50.ours, p50.holds, p95.holds, beyond.ours) == (120.0, True, False, 90.0)
    assert str(found[0]) == "level1: first token after 100 ms, of which asleep in 10 ms, awake in 20 ms"


SLOT = {
    "phase": "Yielding",
    "holders": [{"replica": "dusk[0]"}],
    "leaving": "dusk[0]",
    "next": "dawn[0]",
    "sleepers": [{"replica": "noon[0]"}],
}


def test_victims_are_found_by_what_a_slot_says_of_them():
    found = {victim: replica_of(SLOT, victim) for victim in VICTIMS}
    assert found == {
        "front of who leaves": "dusk",
        "engine of who leaves": "dusk",
        "worker of who leaves": "dusk",
        "front of who comes": "dawn",
        "engine of who comes": "dawn",
        "worker of who comes": "dawn",
        "front of a sleeper": "noon",
        "operator": "",
        "gateway": "",
    }
    assert replica_of({"phase": "Held", "holders": [{"replica": "dusk[0]"}]}, "front of who leaves") == "dusk"
    assert replica_of({"phase": "Free"}, "front of who comes") == ""


async def test_a_pod_s_front_and_engine_are_the_processes_with_its_uid_as_long_as_they_run():
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'], stderr=subprocess.DEVNULL)"
    uid, pipe, fronts = "a pod of this test alone", asyncio.subprocess.PIPE, Fronts()
    front = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, env={"DORMOUSE_POD_UID": uid}, stdin=pipe
    )

    def engine() -> list[int]:
        fronts.refresh([uid])
        return fronts.engine_of(uid)

    await until(engine)
    assert fronts.front_of(uid) == [front.pid]
    [child] = engine()
    assert fronts.pids_of("worker of who leaves", uid) == [front.pid, child]
    assert fronts.pids_of("front of a sleeper", uid) == [front.pid]
    kill(front.pid)
    await front.wait()
    assert (fronts.front_of(uid), fronts.engine_of(uid)) == ([], []), "what it knew runs no more"
    kill(child)
    kill(front.pid)
    await until(lambda: not (fronts.refresh([uid]) or fronts.front_of(uid)))


def test_every_process_of_a_switch_is_killed_in_every_phase_that_knows_it():
    assert len(CASES) == 21
    assert {victim for _, victim in CASES} == set(VICTIMS)
    assert ("Granting", "front of who leaves") not in CASES


def test_pools_and_members_have_nodes_and_figures_for_each_of_them():
    assert (num_nodes(1), num_nodes(64), num_nodes(100)) == (1, 1, 2)
    found = Placing(2, 16, 1.0, 55.0, {"create pods": 16, "patch gpupools/status": 38}, 150 << 20, 3.0)
    placed, writes, memory, _ = placing_rows(found)
    assert (placed.holds, writes.ours, memory.ours) == (True, 3.0, 150.0)


def test_a_campaign_is_judged_by_the_books_of_devices_and_by_answers():
    found = Campaign(
        seed=7,
        longest_s=4.0,
        killed={"operator, Held": 2},
        answered=100,
        wrong=0,
        again={"UNAVAILABLE: end": 3},
        lost={},
        most_awake=2,
        over_size_bytes=0,
        over_budget_bytes=0,
    )
    _, seed, kills, of_operator, _, awake, *_, lost, longest, again = campaign_rows(found)
    assert of_operator.what.endswith("kills of operator, Held")
    assert (kills.ours, of_operator.ours, awake.holds, lost.holds, again.ours) == (2.0, 2.0, False, True, 3.0)
    assert (seed.ours, longest.ours) == (7.0, 4.0)
    before = {kills.what: 40.0, longest.what: 9.5, awake.what: 1.0, "of something else": 100.0}
    worlds, _, kills, *_, longest, again = together(campaign_rows(found), before)
    assert (worlds.ours, kills.ours, longest.ours, again.ours) == (1.0, 42.0, 9.5, 3.0)


def test_the_workers_of_a_pool_s_members_wait_in_standby():
    labels = {"inference.dormouse.dev/pool": "shared"}
    assert _begun({"uid": "u", "labels": labels}).state is WorkerState.STANDBY
    assert _begun({"uid": "u", "labels": {}}).state is WorkerState.PROFILED
