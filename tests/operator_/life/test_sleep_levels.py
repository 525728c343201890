"""No level of sleep is ordered that a worker does not claim."""

from tests.operator_.ladders import LADDER, tell, until_due

DEEP = {**LADDER, "level3AfterSeconds": 3600}


async def serve(rig, *claimed, **spec):
    """Serve with a replica that claims these levels of sleep, for each."""
    rig.apply(replicas=len(claimed), **spec)
    await rig.until_profiled()
    for index, levels in enumerate(claimed):
        rig.worker(index).sleep_levels = levels
    await rig.settle()


def levels(rig):
    return [command for command in rig.worker().commands if "sleep" in command]


async def test_the_ladder_passes_over_levels_that_workers_lack(rig):
    await serve(rig, (3,), lifecycle=DEEP)
    assert rig.status["kvCache"]["ranks"][0]["sleepLevels"] == [3]
    begin = rig.clock()
    tell(rig)
    await until_due(rig)
    assert (rig.clock() - begin).total_seconds() == 3600
    assert (rig.status["phase"], rig.status["lifecycle"]["rung"]) == ("Asleep", "Level3")
    assert levels(rig) == ["prepare_sleep", "sleep 3"]


async def test_of_two_replicas_the_one_that_lacks_a_level_keeps_both_awake(rig):
    await serve(rig, (1, 2, 3), (3,), lifecycle={"level1AfterSeconds": 600})
    tell(rig)
    rig.clock.step(10**4)
    await rig.settle()
    assert rig.status["phase"] == "Active"
    assert levels(rig) == []
    assert rig.condition("Asleep")[2].endswith("; its worker claims no sleep of level 1 and 2")


async def test_an_order_to_a_level_that_a_worker_lacks_is_not_given_and_says_so(rig):
    await serve(rig, (3,))
    rig.worker().running_requests = 1
    rig.apply(lifecycle={"desiredState": "Asleep", "sleepLevel": 1})
    await rig.settle()
    words = f"pod {rig.pods[0]} is not ordered to level 1; its worker claims no sleep of level 1 and 2"
    assert rig.condition("Asleep") == ("False", "SleepRefused", words)
    assert rig.condition("Degraded") == ("True", "SleepRefused", words)
    assert rig.worker().commands[-1] == "initialize_cache", "its requests go on"
    rig.worker().running_requests = 0
    rig.apply(lifecycle={"desiredState": "Asleep", "sleepLevel": 3})
    await rig.settle()
    assert (rig.status["phase"], levels(rig)) == ("Asleep", ["prepare_sleep", "sleep 3"])
