"""How the ranks of a group come together over real sockets: missing ones, late ones, strangers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time

import msgspec
import pytest

from dormouse_worker.common.errors import GroupPortTaken, RankLost, RankMissing
from dormouse_worker.common.exit_codes import EXIT_LEADER_GONE, EXIT_REFUSED
from dormouse_worker.common.group import GroupPlace
from dormouse_worker.executor.ranks.admission import Expected
from dormouse_worker.executor.ranks.gathering import meeting_place
from dormouse_worker.executor.ranks.leader_connection import LeaderLine
from dormouse_worker.executor.ranks.listener import RankDoor, listen_tcp
from dormouse_worker.executor.ranks.messages import Hello, Refusal, encode
from dormouse_worker.executor.ranks.multi_process import MultiProcessExecutor
from dormouse_worker.executor.ranks.spawn import RANK_ARGV, LocalRanks
from dormouse_worker.executor.testing_ranks import group_settings, order_ranks, write_group_model
from tests.ports import free_port_pair

WAIT_S = 90.0


class NoChildren:
    """A pod without ranks of its own."""

    def check(self):
        """See `Children`."""


class Turns:
    """A clock that goes on with each look at it: what has come is seen before the time is over, on any machine."""

    def __init__(self, turn_s=0.005):
        self._turn_s, self._now_s = turn_s, 0.0

    def __call__(self):
        self._now_s += self._turn_s
        return self._now_s


@pytest.fixture
def model(tmp_path):
    return write_group_model(tmp_path / "model")


class Followers:
    """Starts rank processes of other pods, as a follower's front does."""

    def __init__(self, place, settings):
        self.place, self.settings, self.started = place, settings, []

    def start(self, rank, settings=None, connect_timeout_s=WAIT_S, **environ):
        address = f"{self.place.master_addr}:{self.place.message_port}"
        argv = [*RANK_ARGV, "--rank", str(rank), "--address", address, "--connect-timeout", str(connect_timeout_s)]
        env = {**os.environ, **environ}
        pipe = subprocess.PIPE
        process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env=env)
        process.stdin.write(msgspec.json.encode(settings or self.settings))
        process.stdin.close()
        process.stdin = None
        self.started.append(process)
        return process

    def end(self):
        for process in self.started:
            process.kill()
            process.communicate()


@pytest.fixture
def pods(model):
    """A group of two pods with a rank each: its settings, place, followers, and the leader's executor."""
    made = []

    def make(clock=time.monotonic, **environ):
        settings = group_settings(model, tensor=1, pipeline=2)
        place = GroupPlace(
            num_nodes=2,
            master_addr="127.0.0.1",
            master_port=free_port_pair(),
            rank_timeout_s=WAIT_S,
            start_timeout_s=WAIT_S,
        )
        leader = MultiProcessExecutor(settings, {**os.environ, **environ}, place, clock=clock)
        followers = Followers(place, settings)
        made.append((leader, followers))
        return leader, followers

    yield make
    for leader, followers in made:
        leader.shutdown()
        followers.end()


def test_ranks_of_two_pods_join_whoever_is_first(pods):
    """The follower looks for a leader that is not there yet; its interface is the one by which it reached it."""
    leader, followers = pods()
    follower = followers.start(1)
    leader.init_device()
    assert b"joined\n" in iter(follower.stdout.readline, b"")
    facts = leader.collective_rpc("facts")
    assert [fact["variables"]["RANK"] for fact in facts] == ["0", "1"]
    assert facts[1]["variables"]["LOCAL_RANK"] == "0"
    assert facts[1]["variables"]["MASTER_PORT"] == str(followers.place.master_port)
    assert facts[1]["variables"]["GLOO_SOCKET_IFNAME"] == "lo"
    assert float(facts[1]["variables"]["DORMOUSE_GROUP_TIMEOUT_S"]) == followers.place.patience_s
    leader.shutdown()
    assert follower.wait(WAIT_S) == 0


def test_a_rank_that_never_comes_is_named_at_the_deadline(pods, caplog):
    """The leader's time is over once its own rank has come."""
    caplog.set_level("INFO")
    leader, _ = pods(clock=lambda: 2 * WAIT_S if "rank 0 is there" in caplog.text else 0.0)
    with pytest.raises(RankMissing, match=rf"of 2 ranks these did not come within {WAIT_S:g} s: 1$"):
        leader.init_device()


@pytest.mark.parametrize(
    ("environ", "changes", "words"),
    [
        ({"DORMOUSE_GROUP_ID": "old"}, {}, "its group id is 'old', the leader's is 'new'"),
        ({}, {"block_size": 8}, "its settings digest is"),
    ],
)
def test_a_rank_that_does_not_fit_is_refused_and_the_leader_waits_for_one_that_does(pods, environ, changes, words):
    leader, followers = pods(DORMOUSE_GROUP_ID="new")
    gathering = threading.Thread(target=leader.init_device)
    gathering.start()
    settings = msgspec.structs.replace(followers.settings, **changes)
    env = {"DORMOUSE_GROUP_ID": "new", "DORMOUSE_POD_NAME": "pod-1", **environ}
    stranger = followers.start(1, settings, **env)
    _, stderr = stranger.communicate(timeout=WAIT_S)
    assert stranger.returncode == EXIT_REFUSED
    assert words in stderr.decode().splitlines()[-1]
    followers.start(1, DORMOUSE_GROUP_ID="new")
    gathering.join(WAIT_S)
    assert [status.rank for status in leader.get_rank_statuses()] == [0, 1]


def test_the_refused_are_told_with_the_missing(pods):
    """The leader's time is over once the refused one has ended; whether its own rank has come by then is open."""
    leader, followers = pods(clock=lambda: 2 * WAIT_S if stranger.poll() is not None else 0.0)
    stranger = followers.start(1, DORMOUSE_GROUP_ID="old", DORMOUSE_POD_NAME="pod-1")
    with pytest.raises(RankMissing, match=r": (0, )?1; refused: rank 1 \(pod pod-1\): its group id is 'old'"):
        leader.init_device()


def test_a_followers_rank_that_dies_is_named_with_its_pod(pods):
    leader, followers = pods()
    follower = followers.start(1, DORMOUSE_POD_NAME="pod-1")
    leader.init_device()
    follower.kill()
    with pytest.raises(RankLost, match=r"rank 1 \(pod pod-1\)"):
        leader.check_health()


def test_a_followers_rank_ends_with_its_leader_also_in_the_middle_of_an_order(pods, model):
    leader, followers = pods()
    follower = followers.start(1)
    leader.init_device()
    order_ranks(model, rank1={"hang": ["check_health"]}, rank0={"die": ["check_health"]})
    with pytest.raises(RankLost, match="rank 0"):
        leader.check_health()
    leader.abandon()
    assert follower.wait(WAIT_S) == EXIT_LEADER_GONE


def test_a_rank_without_a_leader_gives_up_at_its_deadline(pods):
    _, followers = pods()
    lonely = followers.start(1, connect_timeout_s=0.5)
    _, stderr = lonely.communicate(timeout=WAIT_S)
    assert lonely.returncode == EXIT_LEADER_GONE
    assert "no leader at 127.0.0.1 port" in stderr.decode().splitlines()[-1]


def test_a_name_without_an_address_is_told_at_the_deadline(model):
    settings = group_settings(model, tensor=1, pipeline=2)
    place = GroupPlace(num_nodes=2, master_addr="nobody.invalid", master_port=29500, start_timeout_s=0.1)
    with pytest.raises(RankMissing, match=r"rank 0: 'nobody.invalid' has had no address for 0.1 s"):
        MultiProcessExecutor(settings, os.environ, place).init_device()


def test_the_port_that_was_chosen_for_ranks_to_meet_is_given_to_nobody_else():
    """They load libraries first, for seconds. A port that the user chose is the user's affair."""
    settings = group_settings("/nowhere")
    with meeting_place(settings, GroupPlace()) as place:
        address = ("127.0.0.1", place.master_port)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(address)
        with socket.create_server(address):  # as rank 0 does
            pass
    given = GroupPlace(master_port=1)
    for shape in (settings, group_settings("/nowhere", tensor=1, pipeline=2)):
        with meeting_place(shape, given) as same:
            assert same is given


def test_a_taken_port_is_told(pods):
    leader, followers = pods()
    with (
        listen_tcp("127.0.0.1", followers.place.message_port),
        pytest.raises(GroupPortTaken, match=rf"cannot listen on 127.0.0.1 port {followers.place.message_port}"),
    ):
        leader.init_device()


def test_a_local_rank_that_dies_before_it_joined_is_noticed_at_once(model):
    argv = (sys.executable, "-c", "raise SystemExit(3)")
    local = LocalRanks(argv)
    executor = MultiProcessExecutor(group_settings(model), os.environ, GroupPlace(start_timeout_s=WAIT_S), local=local)
    with pytest.raises(RankLost, match=r"rank 0: its process ended with exit code 3"):
        executor.init_device()
    executor.abandon()


def test_strangers_that_say_nothing_or_nonsense_keep_nobody_out():
    """One connects and is silent, one sends what no message is, one goes away; then the rank comes."""
    hello = Hello(0, "g", "s", "v", "m")
    listener = listen_tcp("127.0.0.1", 0)
    port = listener.getsockname()[1]
    door = RankDoor([listener], Expected(1, 1, hello), time.monotonic)
    silent, nonsense, gone, rank = (socket.create_connection(("127.0.0.1", port)) for _ in range(4))
    nonsense.sendall(b"GET / HTTP/1.1\r\n\r\n")
    gone.close()
    rank.sendall(encode(hello))
    admitted = door.admit_all(WAIT_S, NoChildren())
    assert [connection.name for connection in admitted.values()] == ["rank 0"]
    door.close()
    for connection in (silent, nonsense, rank, *admitted.values()):
        connection.close()


def test_a_rank_that_comes_twice_is_refused_and_one_that_left_may_come_again():
    hello = Hello(0, "g", "s", "v", "m")
    listener = listen_tcp("127.0.0.1", 0)
    address = listener.getsockname()
    door = RankDoor([listener], Expected(2, 1, hello), Turns())
    first, twin = socket.create_connection(address), socket.create_connection(address)
    first.sendall(encode(hello))
    with pytest.raises(RankMissing):
        door.admit_all(0.1, NoChildren())
    twin.sendall(encode(hello))
    with pytest.raises(RankMissing, match="refused: rank 0: this rank is there already"):
        door.admit_all(0.1, NoChildren())
    assert isinstance(LeaderLine(twin).receive(), Refusal)
    first.close()
    again, other = socket.create_connection(address), socket.create_connection(address)
    with pytest.raises(RankMissing):  # until the end of the first one is noticed
        door.admit_all(0.1, NoChildren())
    again.sendall(encode(hello))
    other.sendall(encode(msgspec.structs.replace(hello, rank=1)))
    admitted = door.admit_all(WAIT_S, NoChildren())
    assert list(admitted) == [0, 1]
    door.close()
    for connection in (twin, again, other, *admitted.values()):
        connection.close()
