"""`dormouse status`: the tree, for people and for programs, and what is said where nothing is found."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from io import StringIO

import pytest
import yaml
from rich.console import Console

from dormouse_cli.lines import ago, size, tree
from dormouse_cli.screen import Screen
from dormouse_cli.view import read
from dormouse_kube.api import INFERENCE_DEPLOYMENTS, PODS
from dormouse_kube.errors import Forbidden, KubeError, NotFound, Unavailable
from tests.cli import kit

NOW = datetime(2026, 11, 21, 21, 42, 12, tzinfo=UTC)


def lines_of(raw, *pods):
    return ["  " * line.depth + line.text for line in tree(read(raw, pods), NOW)]


def test_a_deployment_that_serves_is_shown_with_its_replicas_and_ranks():
    raw = kit.deployment()
    raw["metadata"]["generation"] = 1
    assert lines_of(raw, kit.pod(), kit.pod("other")) == [
        "default/tiny  Active  1/1 ready, 2730 blocks of 16 tokens, last cold start took 12.5 s, 4 min ago (started)",
        "  replica 0  tiny-fa477b28-0  Serving, on node-a, memory limit 1536Mi",
        "    rank 0  cpu, 2730 blocks, 2800 fit, limited by kvCacheMemory",
    ]


def test_what_is_missing_is_told_with_its_remedy():
    raw = kit.deployment()
    raw["metadata"]["generation"] = 1
    kit.lacking(raw, "Scheduled", "Unschedulable", "0/3 nodes: no GPU")
    assert lines_of(raw)[1:] == [
        "  Scheduled is False: Unschedulable: 0/3 nodes: no GPU",
        "  what to do: the message is the scheduler's: add a node, free its resource, or ask for less",
    ]


def test_a_sleeping_rank_tells_its_level_and_what_it_holds():
    raw = kit.deployment()
    raw["status"]["kvCache"]["ranks"] = [kit.rank("tiny-fa477b28-0", sleepLevel=2, residualBytes=3 << 20)]
    shown = lines_of(raw, kit.pod())
    assert "Asleep" in shown[-2]
    assert "asleep at level 2" in shown[-1]
    assert shown[-1].endswith("still holds 3 MiB")


def test_what_sleeps_as_it_should_lacks_nothing():
    raw = kit.deployment()
    raw["metadata"]["generation"] = 1
    raw["status"]["conditions"][5] = kit.condition("CacheAllocated", "False", "Asleep", "its cache is given back")
    assert len(lines_of(raw)) == 1


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({"metadata": {"deletionTimestamp": kit.TIME}}, "Ending"),
        ({"status": {"phase": "Failed", "reason": "Evicted"}}, "Ended, Evicted"),
        (
            {"status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no GPU"}]}},
            "Pending, no GPU",
        ),
        (
            {"status": {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}},
            "Starting, ImagePullBackOff",
        ),
        ({"status": {}}, "NotReady"),
    ],
)
def test_the_state_of_a_replica_is_what_the_cluster_says_of_its_pod(change, state):
    pod = kit.pod()
    pod["metadata"].update(change.get("metadata", {}))
    pod["status"] = change.get("status", pod["status"])
    assert f"replica 0  tiny-fa477b28-0  {state}, on node-a" in lines_of(kit.deployment(), pod)[-2]


def test_what_ended_in_a_pod_is_told_below_it_with_the_last_reason_and_when():
    raw, pod = kit.deployment(), kit.pod()
    name = pod["metadata"]["name"]
    killed = {"reason": "EngineDied", "message": "the engine was killed by signal 9", "time": "2026-11-21T21:37:12Z"}
    raw["status"]["crashes"] = [
        {"pod": name, "podUID": "u", "count": 3, **killed},
        {"pod": "follower", "count": 1, "reason": "WorkerCrashed", "message": "the container ended: exit code 1"},
        {"pod": "asked-to-end", "count": 0, "containerRestarts": 2},
    ]
    lines = lines_of(raw, pod)
    first = next(number for number, line in enumerate(lines) if name in line)
    assert lines[first + 1] == "    ended 3 times, last 5 min ago: EngineDied: the engine was killed by signal 9"
    assert lines[-1] == "  follower: ended once: WorkerCrashed: the container ended: exit code 1"
    assert not any("asked-to-end" in line for line in lines)


def test_programs_get_what_ended_as_it_stands(dormouse):
    raw = kit.deployment()
    raw["status"]["crashes"] = [{"pod": "p", "count": 2, "reason": "EngineDied", "message": "m", "time": "t"}]
    (view,) = json.loads(dormouse(kit.cluster(raw), "status", "-o", "json").stdout)
    assert view["crashes"] == [{"pod": "p", "count": 2, "reason": "EngineDied", "message": "m", "time": "t"}]


def test_a_resource_that_nobody_looked_at_yet_is_shown_too():
    raw = {"metadata": {"name": "new", "namespace": "default", "generation": 1}}
    assert lines_of(raw)[0] == "default/new  Unknown  0/1 ready"
    assert "the operator has not looked yet" in lines_of(raw)[1]


def test_in_a_pipe_the_tree_is_plain_text(dormouse):
    result = dormouse(kit.cluster(kit.deployment(), pods=(kit.pod(),)), "status")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("default/tiny  Active  1/1 ready")
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) > 80, "lines are not broken for a terminal that is not there"


@pytest.mark.parametrize(("form", "parse"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_programs_get_the_same_as_json_or_yaml(dormouse, form, parse):
    result = dormouse(kit.cluster(kit.deployment(), pods=(kit.pod(),)), "status", "tiny", "-o", form)
    (view,) = parse(result.stdout)
    assert (view["name"], view["phase"], view["pods"][0]["ranks"][0]["blocks"]) == ("tiny", "Active", 2730)


def test_all_namespaces_are_looked_at_on_request(dormouse):
    fake = kit.cluster(kit.deployment(), kit.deployment("big", "team"))
    assert "team/big" not in dormouse(fake, "status").stdout
    assert "team/big" in dormouse(fake, "status", "-A").stdout
    assert "default/tiny" not in dormouse(fake, "status", "-n", "team").stdout


def test_an_unknown_deployment_suggests_names_that_are_near(dormouse):
    result = dormouse(kit.cluster(kit.deployment("tiny"), kit.deployment("llama")), "status", "tinny")
    assert result.exit_code == 5
    assert result.stderr == (
        "error: there is no InferenceDeployment tinny in the namespace default; did you mean tiny?\n"
    )


def test_one_of_another_namespace_is_pointed_to(dormouse):
    result = dormouse(kit.cluster(kit.deployment("big", "team")), "status", "big")
    assert "; there is one in team (--namespace)" in result.stderr


def test_a_name_is_looked_for_in_all_namespaces_on_request(dormouse):
    fake = kit.cluster(kit.deployment(), kit.deployment("big", "team"))
    assert dormouse(fake, "status", "big", "-A").stdout.startswith("team/big  ")
    result = dormouse(fake, "status", "bigg", "-A")
    assert (result.exit_code, "in any namespace; did you mean big?" in result.stderr) == (5, True)


def test_a_wrong_namespace_is_named_with_those_that_are_near(dormouse):
    result = dormouse(kit.cluster(), "status", "-n", "teem")
    assert (result.exit_code, result.stderr) == (5, "error: there is no namespace teem; did you mean team?\n")


def test_an_empty_namespace_is_no_error(dormouse):
    result = dormouse(kit.cluster(), "status")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "there is no InferenceDeployment in the namespace default" in result.stderr


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (Unavailable("Cannot connect to host"), 3, "no cluster answers at https://fake:6443: Cannot connect to host"),
        (Unavailable("Unauthorized", status=401), 3, "does not know who you are"),
        (Unavailable("too many", status=429), 3, "cannot answer now"),
        (
            Forbidden('inferencedeployments is forbidden: User "x" cannot list resource', status=403),
            4,
            'a right is missing: inferencedeployments is forbidden: User "x" cannot list resource',
        ),
        (NotFound("the server could not find the requested resource"), 5, "inference.dormouse.dev/v1alpha1"),
        (KubeError("teapot", status=418), 1, "teapot"),
    ],
)
def test_what_the_api_server_refuses_is_one_sentence_and_an_exit_code(dormouse, error, code, words):
    fake = kit.cluster()
    fake.fail("list", INFERENCE_DEPLOYMENTS, error)
    result = dormouse(fake, "status")
    assert result.exit_code == code
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_missing_right_on_pods_names_it_too(dormouse):
    fake = kit.cluster(kit.deployment())
    fake.fail("list", PODS, Forbidden('pods is forbidden: User "x" cannot list resource "pods"', status=403))
    result = dormouse(fake, "status")
    assert (result.exit_code, 'cannot list resource "pods"' in result.stderr) == (4, True)


def test_words_of_the_cluster_can_not_command_the_terminal():
    shown = StringIO()
    raw = kit.deployment()
    kit.lacking(raw, "Scheduled", "X", "\x1b[2Jgone [bold]")
    console = Console(file=shown, force_terminal=True, color_system=None, width=300)
    Screen(console, console).tree(tree(read(raw), NOW))
    assert "[2Jgone [bold]" in shown.getvalue()
    assert "\x1b[2J" not in shown.getvalue()


@pytest.mark.parametrize(("num_bytes", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (5 << 40, "5 TiB")])
def test_sizes_have_the_largest_unit_of_which_there_is_one(num_bytes, text):
    assert size(num_bytes) == text


@pytest.mark.parametrize(
    ("time", "text"),
    [
        ("2026-11-21T21:42:11Z", "1 s ago"),
        ("2026-11-21T21:43:00Z", "0 s ago"),
        ("2026-11-19T21:42:12+00:00", "2 d ago"),
        ("soon", "soon"),
    ],
)
def test_times_are_told_by_their_age(time, text):
    assert ago(time, NOW) == text
