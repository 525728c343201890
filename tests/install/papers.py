"""Certificates and tickets of an installed release, real ones and others; calls that show them at real addresses."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import grpc

from dormouse_api.identity import CA_FILE, CERT_FILE, KEY_FILE, Identity, server_name
from dormouse_api.mutual_tls import Bundle
from dormouse_api.names import CONTROL_PORT, INFERENCE_PORT, LABEL_DEPLOYMENT, Role
from dormouse_api.testing_tickets import proof
from dormouse_api.tickets import OPERATOR_TO_GATEWAY, Proof, SharedKey, TicketBook
from dormouse_api.v1 import gateway_control_pb2 as activity
from dormouse_api.v1 import gateway_control_pb2_grpc as activity_rpc
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as inference_rpc
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_api.v1 import worker_control_pb2_grpc as control_rpc
from dormouse_operator.certificates.authority import CertificateAuthority
from dormouse_operator.manifests.identity import identity_secret_name, shared_file
from dormouse_operator.testing.certificates import DAY, a_bundle, an_authority
from tests.install.conftest import Installed
from tools.release import fullname

TIMEOUT_S = 20.0
Ask = Callable[[grpc.Channel, Any], Any]


@dataclass(frozen=True)
class Port:
    """One guarded port of a role, and a call of the service that it serves."""

    role: Role  # whose it is
    number: int
    ask: Ask


@dataclass(frozen=True)
class Caller:
    """What somebody shows: a certificate (None: none), and the operator's ticket, or none."""

    bundle: Bundle | None
    has_ticket: bool = False


PORTS = {
    "WorkerControl": Port(
        Role.WORKER,
        CONTROL_PORT,
        lambda channel, metadata: control_rpc.WorkerControlStub(channel).GetStatus(
            control.GetStatusRequest(), timeout=TIMEOUT_S, metadata=metadata
        ),
    ),
    "Inference": Port(
        Role.WORKER,
        INFERENCE_PORT,
        lambda channel, metadata: inference_rpc.InferenceStub(channel).GetModel(
            pb.GetModelRequest(), timeout=TIMEOUT_S, metadata=metadata
        ),
    ),
    "GatewayControl": Port(
        Role.GATEWAY,
        CONTROL_PORT,
        lambda channel, metadata: next(
            activity_rpc.GatewayControlStub(channel).WatchActivity(
                activity.WatchActivityRequest(), timeout=TIMEOUT_S, metadata=metadata
            )
        ),
    ),
}


@dataclass(frozen=True)
class Papers:
    """A release with mutual TLS, and everything that one could show to its parts."""

    installed: Installed
    deployment: str

    def secret(self, namespace: str, name: str) -> dict[str, bytes]:
        """Return the files of a Secret, none if it is not there."""
        asked = ["get", "secret", name, "-n", namespace, "--ignore-not-found", "-o", "json"]
        found = self.installed.cluster.kubectl(*asked).strip()
        return {key: base64.b64decode(value) for key, value in json.loads(found)["data"].items()} if found else {}

    @property
    def system(self) -> str:
        """Return the release's own namespace."""
        return self.installed.release.namespace

    @property
    def release(self) -> str:
        """Return the prefix of the names of its objects."""
        return fullname(self.installed.release.name)

    @property
    def secrets(self) -> dict[Role, tuple[str, str]]:
        """Return namespace and name of the Secrets with the gateways' and the workers' certificate."""
        return {
            Role.GATEWAY: (self.system, f"{self.release}-gateway-identity"),
            Role.WORKER: (self.installed.namespace, identity_secret_name(self.deployment)),
        }

    def files(self, role: Role) -> dict[str, bytes]:
        """Return the files that the gateways or the workers find mounted; none where the operator has issued none."""
        found = self.secret(*self.secrets[role])
        if role is Role.GATEWAY:
            return found
        names = {shared_file(self.deployment, name): name for name in (CERT_FILE, KEY_FILE, CA_FILE)}
        return {names[key]: content for key, content in found.items() if key in names}

    def issued(self, role: Role) -> Bundle:
        """Return what the operator has issued to the gateways or to the workers."""
        files = self.files(role)
        namespace, name = {
            Role.GATEWAY: (self.system, self.release),
            Role.WORKER: (self.installed.namespace, self.deployment),
        }[role]
        return Bundle(files[CERT_FILE], files[KEY_FILE], files[CA_FILE], Identity(role, namespace, name), 0.0)

    @cached_property
    def authority(self) -> CertificateAuthority:
        """The release's own."""
        files = self.secret(self.system, f"{self.release}-authority")
        return CertificateAuthority(files[CERT_FILE], files[KEY_FILE])

    def proof(self, port: Port) -> Proof:
        """Return the operator's ticket to the pod behind a port: what that pod itself is shown."""
        seeds = self.secret(self.system, f"{self.release}-role-tokens")
        pod = self.pod(port.role)
        if port.role is Role.GATEWAY:
            shared = SharedKey(seeds["gateway-seed"].decode(), OPERATOR_TO_GATEWAY)
            return TicketBook(Role.OPERATOR, [shared]).proof(pod["status"]["podIP"])
        return proof(Role.OPERATOR, pod["metadata"]["uid"], seeds["operator-seed"].decode())

    def made(self, role: Role, namespace: str = "", **fields: Any) -> Bundle:
        """Return another certificate of the release's own authority."""
        return a_bundle(self.authority, role, namespace=namespace or self.installed.namespace, name="probe", **fields)

    @cached_property
    def callers(self) -> dict[str, Caller]:
        """Everybody who tries. The operator's own key is nowhere but in its memory: its certificate is made anew."""
        operator = self.made(Role.OPERATOR, self.system)
        foreign = a_bundle(an_authority(), Role.OPERATOR, namespace=self.system, name="probe")
        certified = {
            "operator": operator,
            "gateway": self.issued(Role.GATEWAY),
            "worker": self.issued(Role.WORKER),
            "client": self.made(Role.CLIENT),
            "client of another namespace": self.made(Role.CLIENT, "elsewhere"),
            "expired operator": self.made(Role.OPERATOR, self.system, lifetime=-DAY),
            "operator of another authority": replace(foreign, ca=operator.ca),  # it trusts the server all the same
        }
        plain = {name: Caller(bundle) for name, bundle in certified.items()}
        shown = {f"{name}, operator's ticket": Caller(bundle, has_ticket=True) for name, bundle in certified.items()}
        return {**plain, **shown, "nobody, operator's ticket": Caller(None, has_ticket=True)}

    def address(self, role: Role) -> str:
        """Return the address of a pod of the gateways or the workers."""
        return str(self.pod(role)["status"]["podIP"])

    def pod(self, role: Role) -> Any:
        """Return a pod of the gateways or the workers."""
        place, label = {
            Role.GATEWAY: (self.system, "app.kubernetes.io/component=gateway"),
            Role.WORKER: (self.installed.namespace, f"{LABEL_DEPLOYMENT}={self.deployment}"),
        }[role]
        pods = self.installed.cluster.list("pods", place, label)
        return next(pod for pod in pods if "ownerReferences" in pod["metadata"])  # others only look like one

    def answer(self, caller: Caller, port: Port, *, is_plain: bool = False) -> str:
        """Return what the pod of the port's role says to a call: OK, or code and words."""
        metadata = self.proof(port) if caller.has_ticket else ()
        with self._channel(caller, port, is_plain=is_plain) as channel:
            try:
                port.ask(channel, metadata)
            except grpc.RpcError as error:
                return f"{error.code().name}: {error.details()}"
        return "OK"

    @contextmanager
    def _channel(self, caller: Caller, port: Port, *, is_plain: bool) -> Iterator[grpc.Channel]:
        target = f"{self.address(port.role)}:{port.number}"
        own = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        if is_plain:
            with grpc.insecure_channel(target, options=own) as channel:
                yield channel
            return
        files = (caller.bundle.key, caller.bundle.cert) if caller.bundle else (None, None)
        credentials = grpc.ssl_channel_credentials(self.authority.cert_pem, *files)
        named = [*own, ("grpc.ssl_target_name_override", server_name(port.role))]
        with grpc.secure_channel(target, credentials, options=named) as channel:
            yield channel
