"""F35 with real processes: certificates are renewed under traffic; expired ones and a stranger's are refused."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from dormouse_api.identity import server_name
from dormouse_api.mutual_tls import Bundle
from dormouse_api.names import Role
from dormouse_api.testing_tickets import proof
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as inference_rpc
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_api.v1 import worker_control_pb2_grpc as control_rpc
from dormouse_operator.testing.certificates import DAY, a_bundle, an_authority, serial_shown, write_bundle
from tests.integration.conftest import Worker
from tools.bootstrap import ROOT, bare_python

AUTHORITY = an_authority()
ROTATIONS = 3
PROMPT = [1, 2, 3, 4]


def channel(port: int, bundle: Bundle) -> grpc.Channel:
    """Open a connection to the worker with this certificate."""
    credentials = grpc.ssl_channel_credentials(bundle.ca, bundle.key, bundle.cert)
    name = ("grpc.ssl_target_name_override", server_name(Role.WORKER))
    own = ("grpc.use_local_subchannel_pool", 1)  # a connection of its own, as another process would have
    return grpc.secure_channel(f"127.0.0.1:{port}", credentials, options=(name, own))


def serial_at(port: int, directory: Path) -> int:
    """Return the serial number of the certificate that the worker shows."""
    return serial_shown(("127.0.0.1", port), Role.WORKER, directory)


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the worker's certificate lies."""
    return write_bundle(tmp_path_factory.mktemp("certificates"), a_bundle(AUTHORITY, Role.WORKER))


@pytest.fixture(scope="module")
def worker(start_worker: Callable[..., Worker], tiny_model: Path, mounted: Path) -> Iterator[Worker]:
    """A worker that wants certificates, ready to serve."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DORMOUSE_MUTUAL_TLS_DIR", str(mounted))
        worker = start_worker(tiny_model)
    with channel(worker.control_port, a_bundle(AUTHORITY, Role.OPERATOR)) as operators:
        worker.control = control_rpc.WorkerControlStub(operators)
        worker.start()
        yield worker


class Traffic:
    """Requests one after the other, over one connection or a new one for each; remembers what went wrong."""

    def __init__(self, port: int, bundle: Bundle, *, keeps_connection: bool) -> None:
        self.errors: list[grpc.RpcError] = []
        self.num_done = 0
        self._port, self._bundle, self._keeps = port, bundle, keeps_connection
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            with channel(self._port, self._bundle) as opened:
                self._ask(opened)
                while self._keeps and not self._stop.is_set():
                    self._ask(opened)

    def _ask(self, opened: grpc.Channel) -> None:
        params = pb.SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)
        request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=PROMPT), sampling_params=params)
        try:
            answer = inference_rpc.InferenceStub(opened).Generate(request, timeout=60)
            assert sum(len(message.token_ids) for message in answer) == 16
            self.num_done += 1
        except grpc.RpcError as error:
            self.errors.append(error)


@pytest.mark.slow
def test_renewals_under_traffic_drop_no_request_and_new_connections_see_the_new_certificate(
    worker: Worker, mounted: Path, tmp_path: Path
) -> None:
    client = a_bundle(AUTHORITY, Role.CLIENT)
    clients = write_bundle(tmp_path / "client", client)
    serials = {serial_at(worker.port, clients)}
    with (
        Traffic(worker.port, client, keeps_connection=True) as kept,
        Traffic(worker.port, client, keeps_connection=False) as fresh,
    ):
        for _ in range(ROTATIONS):
            write_bundle(mounted, a_bundle(AUTHORITY, Role.WORKER))
            while (serial := serial_at(worker.port, clients)) in serials:  # the test's own time-out bounds it
                threading.Event().wait(0.05)
            serials.add(serial)
            before = kept.num_done, fresh.num_done
            while kept.num_done == before[0] or fresh.num_done == before[1]:
                threading.Event().wait(0.01)
                assert not kept.errors + fresh.errors
    assert not kept.errors + fresh.errors
    assert len(serials) == 1 + ROTATIONS
    assert serial_at(worker.control_port, clients) == serial


def test_expired_and_foreign_certificates_reach_neither_port(worker: Worker) -> None:
    stranger = a_bundle(an_authority(), Role.OPERATOR)
    ours = a_bundle(AUTHORITY, Role.OPERATOR)
    disguised = Bundle(stranger.cert, stranger.key, ours.ca, ours.identity, ours.not_after_s)
    for bundle in (a_bundle(AUTHORITY, Role.OPERATOR, lifetime=-DAY), disguised):
        token = proof(Role.OPERATOR)
        with channel(worker.control_port, bundle) as opened, pytest.raises(grpc.RpcError) as caught:
            control_rpc.WorkerControlStub(opened).GetStatus(control.GetStatusRequest(), timeout=90, metadata=token)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        with channel(worker.port, bundle) as opened, pytest.raises(grpc.RpcError) as caught:
            inference_rpc.InferenceStub(opened).GetModel(pb.GetModelRequest(), timeout=90)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_worker_with_an_expired_certificate_ends_at_start_and_says_why(tiny_model: Path, tmp_path: Path) -> None:
    write_bundle(tmp_path, a_bundle(AUTHORITY, Role.WORKER, lifetime=-DAY))
    paths = os.pathsep.join(str(ROOT / part) for part in ("api", "worker_image", "."))
    env = {**os.environ, "PYTHONPATH": paths, "DORMOUSE_MUTUAL_TLS_DIR": str(tmp_path)}
    command = [bare_python(), "-m", "dormouse_worker", "--model", str(tiny_model), "--device", "cpu"]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 2
    assert "tls.crt cannot be used: certificate has expired" in ended.stderr
