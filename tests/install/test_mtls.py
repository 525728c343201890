"""Mutual TLS of a real release: who may not call is refused at the real ports, and renewals lose no request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from dormouse_api.identity import CERT_FILE, KEY_FILE
from dormouse_api.names import CONTROL_PORT, Role
from dormouse_operator.manifests.identity import identity_secret_name, shared_file
from dormouse_operator.testing.certificates import serial_shown, write_bundle
from tests.e2e.kit import Deployments, Model, wait_until, wait_until_none
from tests.install.conftest import MODEL, RESOURCES, a_release, gateway
from tests.install.papers import PORTS, Caller, Papers
from tests.install.traffic import asked_all_the_time, failures
from tests.prober import references
from tests.prober.loads import Load
from tests.prober.probe import Prober
from tests.prober.world import World, open_world
from tools.kubectl import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

LOAD = Load(rate=5, is_fixed=True)
ENGINE = {"maxNumSeqs": 32, "maxNumBatchedTokens": 256, "kvCacheMemory": "128Mi"}
NO_HANDSHAKE = ("expired operator, operator's ticket", "operator of another authority, operator's ticket")
NUM_AFTERWARDS = 10  # requests that are answered after everybody has the new certificate
TICKET = ", operator's ticket"
ALLOWED = [
    ("operator" + TICKET, "WorkerControl"),
    ("operator" + TICKET, "GatewayControl"),
    ("gateway", "Inference"),
    ("client", "Inference"),
]
FORBIDDEN = [
    *(
        (f"{role}{TICKET}", port)
        for role in ("gateway", "worker", "client")
        for port in ("WorkerControl", "GatewayControl")
    ),
    *(
        (role, port)
        for role in ("gateway", "worker", "client", "operator")
        for port in ("WorkerControl", "GatewayControl")
    ),
    *((role, "Inference") for role in ("operator", "worker", "client of another namespace", "gateway" + TICKET)),
]
FROM_A_POD = """
import grpc
from pathlib import Path
from dormouse_api.identity import server_name
from dormouse_api.names import Role
key, cert, ca = (Path("/var/run/dormouse/certificates", name).read_bytes() for name in ("tls.key", "tls.crt", "ca.crt"))
credentials = grpc.ssl_channel_credentials(ca, key, cert)
options = [("grpc.ssl_target_name_override", server_name(Role("{role}")))]
with grpc.secure_channel("{target}", credentials, options=options) as channel:
    try:
        ask = channel.unary_stream("{method}", bytes, bytes)
        list(ask(b"", timeout=20, metadata={metadata!r}))
    except grpc.RpcError as error:
        print(error.code().name, error.details())
    else:
        print("OK")
"""


@pytest.fixture(scope="module")
def papers(cluster: Cluster, tiny_model: Path) -> Iterator[Papers]:
    """A release that says nothing of mutual TLS, and serves. No network policy does what certificates are to do."""
    with a_release(cluster, tiny_model, {"networkPolicy.enabled": "false"}) as mine:
        deployments = Deployments(cluster, mine.namespace)
        deployments.apply(MODEL, engine=ENGINE, resources=RESOURCES)
        deployments.wait(MODEL, "condition=Ready", timeout_s=240)
        yield Papers(mine, MODEL)


@pytest.mark.parametrize(("caller", "port"), ALLOWED)
def test_who_may_call_is_answered(papers: Papers, caller: str, port: str):
    assert papers.answer(papers.callers[caller], PORTS[port]) == "OK"


@pytest.mark.parametrize(("caller", "port"), FORBIDDEN)
def test_a_certificate_of_another_role_or_namespace_is_refused_by_name(papers: Papers, caller: str, port: str):
    said = papers.answer(papers.callers[caller], PORTS[port])
    assert said.startswith("PERMISSION_DENIED: ")
    bundle = papers.callers[caller].bundle
    assert bundle is not None
    if TICKET in caller:
        assert said.endswith(f"a ticket of the role operator was shown by {bundle.identity}")


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("caller", [*NO_HANDSHAKE, "nobody" + TICKET])
def test_without_a_valid_certificate_of_the_authority_nobody_gets_past_the_handshake(
    papers: Papers, caller: str, port: str
):
    assert papers.answer(papers.callers[caller], PORTS[port]).startswith("UNAVAILABLE")


@pytest.mark.parametrize("port", PORTS)
def test_plain_connections_are_refused(papers: Papers, port: str):
    assert papers.answer(Caller(None, has_ticket=True), PORTS[port], is_plain=True).startswith("UNAVAILABLE")


@pytest.mark.parametrize(
    ("component", "role", "method"),
    [
        ("gateway", Role.WORKER, "/dormouse.v1.WorkerControl/GetStatus"),
        ("worker", Role.GATEWAY, "/dormouse.v1.GatewayControl/WatchActivity"),
    ],
)
def test_a_pod_that_was_taken_over_and_a_stolen_ticket_are_of_no_use(
    papers: Papers, component: str, role: Role, method: str
):
    mine = papers.installed
    place = mine.namespace if component == "worker" else papers.system
    [pod, *_] = mine.cluster.list("pods", place, f"app.kubernetes.io/component={component}")
    target = f"{papers.address(role)}:{CONTROL_PORT}"
    ticket = list(papers.proof(PORTS["WorkerControl" if role is Role.WORKER else "GatewayControl"]))
    program = FROM_A_POD.format(role=role, target=target, method=method, metadata=ticket)
    said = mine.cluster.kubectl("exec", "-n", place, pod["metadata"]["name"], "--", "python", "-c", program)
    assert said.startswith("PERMISSION_DENIED a ticket of the role operator was shown by dormouse://" + component)


def serials(papers: Papers) -> dict[Role, int]:
    """Return the serial numbers of the certificates in the Secrets; 0 where there is none."""
    found = {role: papers.files(role).get(CERT_FILE) for role in papers.secrets}
    return {role: x509.load_pem_x509_certificate(pem).serial_number if pem else 0 for role, pem in found.items()}


def nudge(papers: Papers) -> None:
    """Let the kubelet bring the Secrets now: it looks when a pod changes, and by itself once a minute."""
    for place in (papers.system, papers.installed.namespace):
        papers.installed.cluster.kubectl("annotate", "pods", "--all", "--overwrite", "-n", place, "test/nudged=yes")


async def issue_anew(papers: Papers, world: World) -> dict[Role, int]:
    """Lose the issued certificates, as if their time had come, and return those that another operator issues."""
    before = serials(papers)
    for namespace, name in papers.secrets.values():
        await world.kubectl("delete", "secret", name, "-n", namespace)
    await world.restart("operator")

    def issued() -> dict[Role, int]:
        now = serials(papers)
        return now if all(now[role] not in {0, before[role]} for role in now) else {}

    found: dict[Role, int] = await asyncio.to_thread(wait_until, issued)
    return found


async def test_renewed_certificates_reach_running_pods_and_no_request_is_lost(
    papers: Papers, tiny_model: Path, tmp_path: Path
):
    mine = papers.installed
    prober = Prober(await asyncio.to_thread(references.greedy_cases, tiny_model))
    here = write_bundle(tmp_path, papers.made(Role.CLIENT))
    addresses = {role: (papers.address(role), CONTROL_PORT) for role in papers.secrets}

    def shown() -> dict[Role, int]:
        return {role: serial_shown(address, role, here) for role, address in addresses.items()}

    async with open_world(mine.cluster, mine.release) as world:
        before = {component: mine.pods(component) for component in ("gateway", "worker")}
        assert shown() == serials(papers)
        async with asked_all_the_time(prober, await world.gateway_address(), LOAD, MODEL):
            wanted = await issue_anew(papers, world)
            await asyncio.to_thread(nudge, papers)
            await asyncio.to_thread(wait_until, lambda: shown() == wanted, timeout_s=150)
            sent = len(prober.records)
            later = sent + NUM_AFTERWARDS
            await asyncio.to_thread(
                wait_until, lambda: len(prober.records) > later and all(r.finding for r in prober.records[:later])
            )
    assert not failures(prober)
    assert {component: mine.pods(component) for component in before} == before
    assert {*before["worker"].values(), *before["gateway"].values()} == {0}


def test_a_deployment_takes_its_certificate_with_it(papers: Papers):
    deployments = Deployments(papers.installed.cluster, papers.installed.namespace)
    name = deployments.apply("brief", resources=RESOURCES)
    place = (papers.installed.namespace, identity_secret_name(name))
    wait_until(lambda: shared_file(name, KEY_FILE) in papers.secret(*place))
    deployments.delete(name)
    wait_until_none(lambda: shared_file(name, KEY_FILE) in papers.secret(*place))
    assert papers.files(Role.WORKER)


class Impostor:
    """A pod that looks like a worker of the deployment, in its namespace, and says who connects to its ports."""

    NAME = "impostor"
    LISTENS = """
import selectors, socket
listening = selectors.DefaultSelector()
for port in (50051, 50052):
    listening.register(socket.create_server(("", port)), selectors.EVENT_READ)
print("listens", flush=True)
while True:
    for key, _ in listening.select():
        connection, caller = key.fileobj.accept()
        print("heard", caller, key.fileobj.getsockname(), flush=True)
"""

    def __init__(self, papers: Papers) -> None:
        self.papers = papers
        self._cluster, self._namespace = papers.installed.cluster, papers.installed.namespace

    def start(self) -> None:
        """Start it, as somebody may who may create pods in the namespace. It mounts the workers' certificate, too."""
        worker = self.papers.pod(Role.WORKER)
        like = next(each for each in worker["spec"]["containers"] if each["name"] == "worker")
        mounts = [mount for mount in like["volumeMounts"] if mount["name"] == "certificates"]
        container = {"name": "worker", "image": like["image"], "imagePullPolicy": like["imagePullPolicy"]}
        container |= {"command": ["python", "-c", self.LISTENS], "volumeMounts": mounts}
        spec = {
            "containers": [{**container, "securityContext": like["securityContext"]}],
            "volumes": [volume for volume in worker["spec"]["volumes"] if volume["name"] == "certificates"],
            "securityContext": worker["spec"]["securityContext"],
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
        }
        metadata = {"name": self.NAME, "labels": worker["metadata"]["labels"]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        self._cluster.apply(pod, self._namespace)
        self._cluster.wait(f"pod/{self.NAME}", "condition=Ready", self._namespace)
        wait_until(lambda: "listens" in self.log())

    def log(self) -> str:
        """Return what it said."""
        return self._cluster.kubectl("logs", self.NAME, "-n", self._namespace)

    def says(self, program: str) -> str:
        """Return what a program in it prints."""
        return self._cluster.kubectl("exec", "-n", self._namespace, self.NAME, "--", "python", "-c", program)

    def end(self) -> None:
        """Remove it."""
        self._cluster.kubectl("delete", "pod", self.NAME, "-n", self._namespace, "--ignore-not-found")


@pytest.fixture
def impostor(papers: Papers) -> Iterator[Impostor]:
    """It runs while the test does."""
    made = Impostor(papers)
    try:
        made.start()
        yield made
    finally:
        made.end()


def test_a_pod_that_looks_like_a_worker_gets_no_call_and_commands_nobody(papers: Papers, impostor: Impostor):
    """No order, no ticket, no request comes to it; with what it can mount it is a worker, who may call no worker."""
    mine = papers.installed
    deployments = Deployments(mine.cluster, mine.namespace)
    address = papers.pod(Role.WORKER)["status"]["podIP"]

    def is_told() -> bool:
        conditions = mine.cluster.get("infd", MODEL, mine.namespace)["status"]["conditions"]
        return any(Impostor.NAME in condition["message"] for condition in conditions)

    wait_until(is_told)
    for state in ("Asleep", "Active"):
        deployments.patch(MODEL, {"lifecycle": {"desiredState": state}})
        mine.cluster.wait(f"infd/{MODEL}", f"jsonpath={{.status.phase}}={state}", mine.namespace)
    with gateway(mine) as stub:
        for _ in range(20):
            assert Model(stub, MODEL).greedy([5, 6, 7], 2)
    assert impostor.log().split() == ["listens"]
    method = "/dormouse.v1.WorkerControl/GetStatus"
    call = FROM_A_POD.format(role=Role.WORKER, target=f"{address}:{CONTROL_PORT}", method=method, metadata=[])
    assert impostor.says(call).startswith("PERMISSION_DENIED dormouse.v1.WorkerControl needs the role operator")
    bare = call.replace("(ca, key, cert)", "(ca)")
    assert impostor.says(bare).startswith("UNAVAILABLE")
