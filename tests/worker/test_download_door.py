"""Who downloads a model tells the operator how far it is, and nobody else; what forbids that costs no byte."""

from __future__ import annotations

import os
import subprocess
import sys

import grpc
import pytest
from huggingface_hub import close_session

from dormouse_api import testing_tickets
from dormouse_api.names import Role
from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_api.v1 import worker_control_pb2_grpc as rpc
from dormouse_worker.download import main
from dormouse_worker.files.hub import HubFile, partial_of
from dormouse_worker.files.hub_folder import num_bytes_here
from tests.ports import free_port
from tests.worker.hub_server import HubServer

MIB = 1 << 20
SMALL, WEIGHTS = {"config.json": b"{}"}, bytes(48 * MIB)


@pytest.fixture
def hub():
    with HubServer() as server:
        server.state.files = dict(SMALL)
        yield server
        close_session()


def ask(port, role):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = rpc.WorkerControlStub(channel)
        return stub.GetStatus(pb.GetStatusRequest(), metadata=testing_tickets.proof(role), timeout=60)


def test_the_operator_hears_how_much_is_here_and_nobody_else(hub, tmp_path):
    """What the hub could send, less what sockets and one chunk hold, was written: no need to watch the process."""
    hub.state.files["model.safetensors"] = WEIGHTS
    hub.state.stall_after["model.safetensors"], hub.state.goes_on = 40 * MIB, True
    port = free_port()
    command = [sys.executable, "-m", "dormouse_worker.download", "--repo=org/tiny", f"--directory={tmp_path}"]
    known = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / ".home"), **testing_tickets.environment()}
    with subprocess.Popen([*command, f"--control-port={port}"], env={**os.environ, **known}) as process:
        assert hub.state.stalled.wait(60)
        with pytest.raises(grpc.RpcError) as refused:
            ask(port, Role.GATEWAY)
        told = ask(port, Role.OPERATOR)
        hub.state.release.set()
        assert process.wait(60) == 0
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert (told.state, told.pod_uid) == (pb.WORKER_STATE_STARTING, testing_tickets.POD_UID)
    assert told.download.total_bytes == len(WEIGHTS) + 2
    assert 8 * MIB < told.download.done_bytes < told.download.total_bytes
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [("DORMOUSE_OPERATOR_KEY", "no key", "is no public key"), ("DORMOUSE_MUTUAL_TLS_DIR", "/nowhere", "/nowhere")],
)
def test_what_keeps_it_from_telling_is_said_and_everything_comes_and_a_second_time_nobody_has_to_be_told(
    hub, tmp_path, monkeypatch, capsys, variable, value, words
):
    hub.state.files["model.safetensors"] = b"weights"
    for name, known in {"HF_ENDPOINT": hub.endpoint, **testing_tickets.environment(), variable: value}.items():
        monkeypatch.setenv(name, known)
    command = ["--repo=org/tiny", f"--directory={tmp_path}", f"--control-port={free_port()}"]
    main(command)
    assert (tmp_path / "model.safetensors").read_bytes() == b"weights"
    said = capsys.readouterr().out
    assert "nobody is told how far it is" in said
    assert words in said
    main(command)
    assert "nobody is told" not in capsys.readouterr().out


def test_partial_files_count_and_a_file_counts_once(tmp_path):
    files = [HubFile("a", 5), HubFile("b", 7), HubFile("c", 9)]
    (tmp_path / "a").write_bytes(bytes(5))
    partial_of(tmp_path / "a").write_bytes(bytes(4))
    partial_of(tmp_path / "b").write_bytes(bytes(3))
    assert num_bytes_here(tmp_path, files) == 8
