"""The sandbox refuses what it cannot do, and never changes the host's network."""

from __future__ import annotations

import ipaddress

import pytest

from bench.fleet import sandbox
from localkube import spec


def make_programs(folder, names):
    for name in names:
        (folder / name).touch(mode=0o755)
    return str(folder)


def test_a_user_who_is_not_root_is_told(tmp_path):
    path = make_programs(tmp_path, sandbox.NEEDED)
    sandbox.check(uid=0, path=path)
    with pytest.raises(sandbox.SandboxError, match="must run as root"):
        sandbox.check(uid=1000, path=path)


@pytest.mark.parametrize(("missing", "package"), [("ip", "iproute2"), ("setpriv", "util-linux"), ("mount", "mount")])
def test_a_missing_program_is_named_with_its_package(tmp_path, missing, package):
    path = make_programs(tmp_path, set(sandbox.NEEDED) - {missing})
    with pytest.raises(sandbox.SandboxError, match=rf"`{missing}` is not installed \(Debian package {package}\)"):
        sandbox.check(uid=0, path=path)


def test_the_programs_inside_get_a_network_of_their_own_and_end_with_who_started_them():
    command = sandbox.enter_command(["program", "--flag"])
    assert {"--net", "--pid", "--kill-child", "--pdeathsig"} <= set(command)
    assert command[-3:] == ["--", "program", "--flag"]


@pytest.mark.parametrize("env", [{}, sandbox.host_note()])
def test_the_network_of_the_host_is_left_alone(env):
    with pytest.raises(sandbox.SandboxError, match="no network of the benchmark's own"):
        sandbox.bring_up_network(env, run=pytest.fail)


def test_a_network_that_is_not_the_hosts_is_made():
    (note,) = sandbox.host_note()
    ran = []
    sandbox.bring_up_network({note: "net:[1]"}, run=ran.append)
    assert ran == sandbox.network_commands()


def test_only_the_loopback_is_touched_and_pods_share_no_address_with_the_node():
    for command in sandbox.network_commands():
        assert command[-2:] == ["dev", "lo"] or command[-2:] == ["lo", "up"]
    pods = ipaddress.ip_network(sandbox.POD_CIDR)
    for taken in (spec.NODE_IP, spec.API_SERVICE_IP, "127.0.0.1"):
        assert ipaddress.ip_address(taken) not in pods
