"""Commands: their names, their way over the socket, and what may not be ordered."""

from typing import get_args

import pytest

from dormouse_worker.common.commands import Command, PrepareWakeUp, Sleep, WakeUp
from dormouse_worker.common.frames import decode_front, encode_frame
from dormouse_worker.common.ipc import CommandRequest
from tests.worker.each_command import EACH_COMMAND

FRAME_HEADER_BYTES = 4


def test_the_list_for_tests_has_every_command():
    assert [type(command) for command in EACH_COMMAND] == [*get_args(Command)]


def test_a_method_is_named_as_that_of_vllm():
    assert [Sleep().method, PrepareWakeUp().method] == ["sleep", "prepare_wake_up"]


@pytest.mark.parametrize("command", EACH_COMMAND, ids=lambda command: command.method)
def test_a_command_arrives_as_it_was_sent(command):
    requests = [CommandRequest(7, command)]
    assert decode_front(encode_frame(requests)[FRAME_HEADER_BYTES:]) == requests


@pytest.mark.parametrize("make", [lambda: Sleep(3), lambda: Sleep(1, ()), lambda: Sleep(1, ("graphs",))])
def test_no_sleep_is_made_that_the_edge_should_have_refused(make):
    with pytest.raises(AssertionError):
        make()


@pytest.mark.parametrize("kind", [PrepareWakeUp, WakeUp])
@pytest.mark.parametrize("tags", [(), ("weights", "graphs")])
def test_no_wake_is_made_of_nothing_or_of_what_can_not_sleep(kind, tags):
    with pytest.raises(AssertionError):
        kind(tags)
