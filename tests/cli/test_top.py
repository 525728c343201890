"""`dormouse top`: what workers tell of themselves, in rows."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from dormouse_cli.samples import COLUMNS, Load, parse, rows, tokens_per_s
from dormouse_cli.screen import Screen
from dormouse_cli.session import Session
from dormouse_cli.watching import top
from dormouse_kube.errors import Forbidden
from tests.cli import kit

TEXT = """\
# HELP vllm:num_requests_running Requests in the batch.
vllm:num_requests_running{model_name="tiny, a {strange} name"} 3.0
vllm:num_requests_waiting{model_name="tiny"} 2.0
vllm:kv_cache_usage_perc{model_name="tiny"} 0.25
vllm:generation_tokens_total{model_name="tiny"} 100.0
dormouse_host_copy_bytes{model_name="tiny"} 2097152.0
some_other{le="+Inf"} NaN
process_open_fds 9
broken line
"""


def load(time_s, tokens):
    return Load(time_s, running=0, waiting=0, kv_usage=0.0, prompt_tokens=0, generated_tokens=tokens, host_copy_bytes=0)


def test_samples_are_read_whatever_their_labels_hold():
    assert parse(TEXT, 7.0) == Load(7.0, 3, 2, 0.25, 0.0, 100.0, 2097152.0)


def test_what_an_older_worker_does_not_tell_is_nothing():
    assert parse("", 0.0).running == 0


@pytest.mark.parametrize(
    ("before", "after", "speed"),
    [
        (load(1.0, 100), load(3.0, 150), 25.0),
        (None, load(3.0, 150), None),
        (load(1.0, 100), load(3.0, 5), None),  # it restarted
        (load(1.0, 100), load(1.0, 150), None),
    ],
)
def test_a_speed_needs_two_looks_at_the_same_process(before, after, speed):
    assert tokens_per_s(before, after) == speed


def test_a_worker_that_does_not_answer_keeps_its_row():
    (row,) = rows({"a": "Starting"}, {}, {})
    assert row.cells == ("a", "Starting", "-", "-", "-", "-", "-")


def test_in_a_pipe_there_is_one_look_as_lines(dormouse):
    fake = kit.cluster(kit.deployment(), pods=(kit.pod(),))
    fake.scrapes["tiny-fa477b28-0"] = TEXT
    result = dormouse(fake, "top")
    assert result.stdout.splitlines() == [
        "\t".join(COLUMNS),
        "tiny-fa477b28-0\tServing\t3\t2\t25.0%\t-\t2",
    ]


def test_pods_of_several_namespaces_are_told_apart(dormouse):
    fake = kit.cluster(kit.deployment(), kit.deployment(namespace="team"), pods=(kit.pod(), kit.pod(namespace="team")))
    fake.scrapes["tiny-fa477b28-0"] = TEXT
    names = [line.split("\t")[0] for line in dormouse(fake, "top", "-A").stdout.splitlines()[1:]]
    assert names == ["default/tiny-fa477b28-0", "team/tiny-fa477b28-0"]


def test_without_a_pod_status_is_pointed_to(dormouse):
    result = dormouse(kit.cluster(kit.deployment()), "top")
    assert (result.exit_code, "there is no worker pod" in result.stderr) == (1, True)


class Guarded(kit.FakeCluster):
    """A cluster where nobody may ask pods."""

    async def metrics(self, namespace, pod, port):
        raise Forbidden(f'User "x" cannot get resource "pods/proxy" in {namespace} ({pod}:{port})', status=403)


def test_the_missing_right_to_ask_pods_is_named(dormouse):
    fake = kit.cluster(kit.deployment(), pods=(kit.pod(),), kind=Guarded)
    result = dormouse(fake, "top")
    assert (result.exit_code, 'cannot get resource "pods/proxy"' in result.stderr) == (4, True)


async def test_on_a_terminal_it_redraws_a_table():
    fake = kit.cluster(kit.deployment(), pods=(kit.pod(),))
    fake.scrapes["tiny-fa477b28-0"] = TEXT
    console = Console(file=StringIO(), force_terminal=True, width=120, color_system=None)
    session = Session(fake, "default", Screen(console, console))
    await top(session, all_namespaces=False, interval_s=0.0, count=2)
    shown = console.file.getvalue()
    assert shown.count("tiny-fa477b28-0") >= 2, "rich draws once more at the end"
    assert "TOKENS/S" in shown
