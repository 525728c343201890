"""Ports of tests: each is given once, also where several processes of tests ask at the same time."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

import pytest

from tests.ports import END, LOWEST, Ports, free_port_pair


@pytest.fixture
def two():
    """Two ports that are ours."""
    first = free_port_pair()
    return range(first, first + 2)


def all_of(ports):
    """Take ports until none is left."""
    taken = []
    with suppress(IndexError):
        while True:
            taken.append(ports.take())
    return sorted(taken)


def test_each_port_is_given_once(tmp_path):
    ports = Ports(tmp_path / "book")
    taken = [ports.take() for _ in range(50)]
    assert len(set(taken)) == 50
    assert all(LOWEST <= port < END for port in taken)


def test_a_port_with_a_listener_is_left_out(tmp_path, two):
    with socket.create_server(("127.0.0.1", two[1])):
        assert all_of(Ports(tmp_path / "book", two)) == [two[0]]


def test_a_pair_is_one_after_the_other_and_neither_is_given_again(tmp_path):
    ports = Ports(tmp_path / "book")
    first = ports.take_pair()
    assert not {first, first + 1} & {ports.take() for _ in range(50)}


def test_what_another_process_was_given_is_not_given_until_it_ends(tmp_path, two):
    done, told = os.pipe()
    ended, ending = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ending)
        os.write(told, bytes([Ports(tmp_path / "book", two).take() - two[0]]))
        os.read(ended, 1)
        os._exit(0)
    taken = two[os.read(done, 1)[0]]
    assert all_of(Ports(tmp_path / "book", two)) == [port for port in two if port != taken]
    os.close(ending)
    os.waitpid(child, 0)
    assert all_of(Ports(tmp_path / "book", two)) == list(two)
    for end in (done, told, ended):
        os.close(end)
