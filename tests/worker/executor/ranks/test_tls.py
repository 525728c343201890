"""Ranks of other pods prove that they are of the leader's deployment, and the leader proves it to them."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time

import pytest

from dormouse_api.identity import server_name
from dormouse_api.names import Role
from dormouse_operator.testing.certificates import DAY, a_bundle, an_authority, write_bundle
from dormouse_worker.common.errors import RankMissing
from dormouse_worker.common.group import GroupPlace
from dormouse_worker.executor.ranks.admission import Expected
from dormouse_worker.executor.ranks.connection import RankConnection
from dormouse_worker.executor.ranks.leader_connection import LeaderGone, LeaderLine, connect_tcp
from dormouse_worker.executor.ranks.listener import RankDoor, listen_tcp
from dormouse_worker.executor.ranks.messages import Answer, Call, Hello, encode, encode_value
from dormouse_worker.executor.ranks.multi_process import MultiProcessExecutor
from dormouse_worker.executor.ranks.tls import DIRECTORY_VARIABLE, RankTls
from dormouse_worker.executor.testing_ranks import group_settings, write_group_model
from tests.ports import free_port, free_port_pair
from tests.worker.executor.ranks.test_gathering import WAIT_S, Followers, NoChildren

AUTHORITY = an_authority()
HELLO = Hello(0, "group", "settings", "1.0", "model")


@pytest.fixture
def certificates(tmp_path):
    """Return a function (name, authority, lifetime) → directory with a worker's certificate."""

    def write(name="tiny", authority=AUTHORITY, lifetime=DAY):
        directory = tmp_path / f"certificates-{len(list(tmp_path.iterdir()))}"
        return write_bundle(directory, a_bundle(authority, Role.WORKER, name=name, lifetime=lifetime))

    return write


class Visits:
    """A clock whose time is over once the visitor has left: as long as he takes, the leader waits."""

    visitor = None

    def __call__(self):
        return WAIT_S if self.visitor and self.visitor.outcome is not None else 0.0


@pytest.fixture
def visits():
    return Visits()


@pytest.fixture
def door(certificates, visits):
    """A leader's door on loopback that wants certificates of the deployment `tiny`."""
    port = free_port()
    door = RankDoor([listen_tcp("127.0.0.1", port)], Expected(1, 1, HELLO), visits, RankTls(certificates()))
    yield door, port
    door.close()


def connect(port, directory):
    """Come once; whoever is turned away does not come again."""
    tls = RankTls(directory) if directory else None
    return connect_tcp("127.0.0.1", port, 0.0, tls, clock=time.monotonic, sleep=time.sleep)


class Visitor:
    """Comes to a door from a thread of its own: a handshake takes both ends."""

    def __init__(self, come):
        self.outcome = None
        self._thread = threading.Thread(target=self._run, args=(come,))
        self._thread.start()

    def _run(self, come):
        try:
            self.outcome = come()
        except (LeaderGone, OSError) as error:
            self.outcome = error

    def left(self):
        """Return what it came back with."""
        self._thread.join(WAIT_S)
        return self.outcome


def say_hello(connection):
    """Greet, and return what the leader says then."""
    with connection:
        line = LeaderLine(connection)
        line.say(HELLO)
        return line.receive()


@pytest.mark.parametrize("environ", [{}, {"DORMOUSE_POD_NAME": "pod-1"}])
def test_pods_of_one_deployment_compute_together(tmp_path, certificates, environ):
    settings = group_settings(write_group_model(tmp_path / "model"), tensor=1, pipeline=2)
    place = GroupPlace(
        num_nodes=2,
        master_addr="127.0.0.1",
        master_port=free_port_pair(),
        rank_timeout_s=WAIT_S,
        start_timeout_s=WAIT_S,
    )
    environ = {**environ, DIRECTORY_VARIABLE: str(certificates())}
    leader, followers = MultiProcessExecutor(settings, {**os.environ, **environ}, place), Followers(place, settings)
    try:
        follower = followers.start(1, **environ)
        leader.init_device()
        assert [fact["variables"]["RANK"] for fact in leader.collective_rpc("facts")] == ["0", "1"]
        leader.shutdown()
        assert follower.wait(WAIT_S) == 0
    finally:
        leader.shutdown()
        followers.end()


def test_a_rank_goes_to_no_leader_of_another_deployment(door, visits, certificates):
    open_door, port = door
    visitor = visits.visitor = Visitor(lambda: connect(port, certificates(name="other")))
    with pytest.raises(RankMissing):
        open_door.admit_all(1.5, NoChildren())
    words = "the leader is dormouse://worker/team/tiny by its certificate; this pod is dormouse://worker/team/other"
    assert words in str(visitor.left())


def test_a_leader_takes_no_rank_of_another_deployment(door, visits, certificates):
    """Not even one that does not look at whom it speaks to."""
    open_door, port = door
    directory = certificates(name="other")

    def come():
        context = ssl.create_default_context(cafile=directory / "ca.crt")
        context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
        plain = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        return say_hello(context.wrap_socket(plain, server_hostname=server_name(Role.WORKER)))

    visitor = visits.visitor = Visitor(come)
    words = "rank 0 is dormouse://worker/team/other by its certificate; this pod is dormouse://worker/team/tiny"
    with pytest.raises(RankMissing, match=f"refused: {words}"):
        open_door.admit_all(1.5, NoChildren())
    assert visitor.left().message == words


@pytest.mark.parametrize("shown", ["nothing", "a stranger's", "an expired one"])
def test_without_a_certificate_that_holds_nobody_comes_in(door, visits, certificates, shown):
    open_door, port = door
    directories = {
        "nothing": lambda: None,
        "a stranger's": lambda: certificates(authority=an_authority()),
        "an expired one": lambda: certificates(lifetime=-DAY),
    }
    visitor = visits.visitor = Visitor(lambda: say_hello(connect(port, directories[shown]())))
    with pytest.raises(RankMissing, match=r"did not come within 1.5 s: 0$"):
        open_door.admit_all(1.5, NoChildren())
    assert isinstance(visitor.left(), LeaderGone)


def test_large_messages_go_both_ways_at_once(certificates):
    """What is larger than every buffer, while a reader waits and a writer writes."""
    here, there = socket.socketpair()
    tls, large = RankTls(certificates()), "x" * (8 << 20)
    visitor = Visitor(lambda: tls.connect(there))
    leader = RankConnection(tls.accept(here), time.monotonic)
    answers = []
    while visitor.outcome is None:
        answers += leader.receive()
    stream = visitor.left()
    line, heard = LeaderLine(stream), []
    reading = threading.Thread(target=lambda: heard.append(line.receive()))
    writing = threading.Thread(target=lambda: line.say(Answer(1, encode_value(large))))
    leader.send(encode(Call(1, "echo", [large])))
    for thread in (reading, writing):
        thread.start()
    deadline_s = time.monotonic() + WAIT_S
    while not answers or leader.wants_to_write:
        assert time.monotonic() < deadline_s
        leader.flush()
        answers += leader.receive()
    for thread in (reading, writing):
        thread.join(WAIT_S)
    leader.close()
    stream.__exit__()
    assert heard == [Call(1, "echo", [large])]
    assert len(answers[0].value) > len(large)
