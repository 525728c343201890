"""What the sandbox of pools runs for a pod, and the rows of what it finds."""

from pathlib import Path

from bench.slots.findings import Switch, switch_rows
from bench.slots.workers import arguments_of, environment_of
from bench.slots.world import Seen

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
