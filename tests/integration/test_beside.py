"""The HTTP API of a pod: a real worker that wants certificates, and the process beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from dormouse_api.identity import server_name
from dormouse_api.names import METADATA_CACHE_SALT, METADATA_CALLER, Role
from dormouse_api.testing_tickets import environment, proof
from dormouse_api.v1 import worker_control_pb2_grpc as control_rpc
from dormouse_operator.testing.certificates import a_bundle, an_authority, write_bundle
from tests.integration.conftest import PATIENCE_S, Worker
from tests.ports import free_port

AUTHORITY = an_authority()
BODY = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the certificate and the socket are."""
    return tmp_path_factory.mktemp("pod")


@pytest.fixture(scope="module")
def worker(start_worker: Callable[..., Worker], tiny_model: Path, folder: Path) -> Iterator[Worker]:
    """A worker that wants certificates at its ports, and serves its pod at a socket."""
    bundle = write_bundle(folder / "tls", a_bundle(AUTHORITY, Role.WORKER))
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("DORMOUSE_MUTUAL_TLS_DIR", str(bundle))
        worker = start_worker(tiny_model, "--local-socket", str(folder / "inference.sock"))
    operator = a_bundle(AUTHORITY, Role.OPERATOR)
    credentials = grpc.ssl_channel_credentials(operator.ca, operator.key, operator.cert)
    name = ("grpc.ssl_target_name_override", server_name(Role.WORKER))
    with grpc.secure_channel(f"127.0.0.1:{worker.control_port}", credentials, options=(name,)) as operators:
        worker.control = control_rpc.WorkerControlStub(operators)
        worker.start()
        yield worker


@pytest.fixture(scope="module")
def url(worker: Worker, folder: Path) -> Iterator[str]:
    """The address of the API beside it."""
    assert worker.process.poll() is None, "it serves"
    port = free_port()
    command = [sys.executable, "-m", "dormouse_gateway.beside", f"--worker={folder / 'inference.sock'}"]
    with subprocess.Popen(
        [*command, "--port", str(port), "--", "tiny", "team/tiny"], env={**os.environ, **environment()}
    ) as process:
        yield f"http://127.0.0.1:{port}"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def post(url: str, headers: Mapping[str, str]) -> tuple[int, dict[str, object]]:
    """Return status and body; waits for the process to listen."""
    said = {"content-type": "application/json", **headers}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(BODY).encode(), said)
    while True:
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError):
                raise


def test_what_a_picker_let_in_is_served_though_the_worker_wants_certificates(url: str) -> None:
    ticket = dict(proof(Role.GATEWAY))
    status, told = post(url, {**ticket, METADATA_CALLER: "somebody", METADATA_CACHE_SALT: "salt"})
    assert status == 200, told
    assert told["choices"][0]["text"]  # type: ignore[index]


def test_what_a_picker_let_in_to_another_pod_is_to_come_again(url: str) -> None:
    status, told = post(url, dict(proof(Role.GATEWAY, "another-pod")))
    assert status == 503
    assert "send it again" in told["error"]["message"]  # type: ignore[index]


@pytest.mark.parametrize("shown", [(), (Role.OPERATOR,)])
def test_what_shows_no_ticket_of_a_gateway_is_refused(url: str, shown: tuple[Any, ...]) -> None:
    ticket = dict(proof(*shown)) if shown else {}
    status, told = post(url, {**ticket, METADATA_CACHE_SALT: "salt"})
    assert status == 401
    assert "endpoint picker" in told["error"]["message"]  # type: ignore[index]


def test_at_its_port_the_worker_still_wants_a_certificate(worker: Worker) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        worker.greedy([1, 2], 1)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
