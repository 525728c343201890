"""The worker that is asked: its doors, its operator's epoch, and how it is brought to where a rule can be tried.

Nothing is expected of it here but the way itself: who cannot be brought there is Blocked, not wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dormouse_api.capabilities import Capability
from dormouse_api.limits import channel_options
from dormouse_api.names import INFERENCE_SERVICE
from dormouse_api.status import STATUS_DETAILS, read_details
from dormouse_api.tickets import Proof, TicketBook
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as inference_rpc
from dormouse_api.v1 import relay_pb2_grpc as relay_rpc
from dormouse_api.v1 import worker_control_pb2 as control
from dormouse_api.v1 import worker_control_pb2_grpc as control_rpc
from dormouse_conformance.findings import Blocked, Missed, Refused, Unclaimed
from dormouse_conformance.streams import Answer, Stream

LOOK_S = 0.02  # between two looks at a status that shall change
STEPS = 8  # from any state to READY there are fewer
LONGEST = 2048  # tokens of a stream that shall still run when something happens to it
MOVING = frozenset(
    {
        control.WORKER_STATE_STARTING,
        control.WORKER_STATE_LOADING,
        control.WORKER_STATE_INITIALIZING,
        control.WORKER_STATE_WAKING,
    }
)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a worker listens, and what proves to it who calls."""

    address: str  # host:port of Inference and Relay
    control_address: str  # host:port of WorkerControl
    pod_uid: str  # under which it takes tickets
    operator: TicketBook
    gateway: TicketBook
    patience_s: float  # for anything that it does


@dataclass(slots=True)
class Subject:
    """A worker under test. Must be closed."""

    target: Target
    claims: frozenset[Capability] = frozenset()
    epoch: int = 1  # of us as its operator; only ever grows
    model: pb.GetModelResponse = field(default_factory=pb.GetModelResponse)
    _channels: list[grpc.Channel] = field(default_factory=list)
    _inference: Any = None
    _control: Any = None
    _health: Any = None
    relay: Any = None

    def __post_init__(self) -> None:
        target = self.target
        self._channels = [
            grpc.insecure_channel(address, options=channel_options())
            for address in (target.address, target.control_address)
        ]
        front, control_channel = self._channels
        self._inference = inference_rpc.InferenceStub(front)
        self._control = control_rpc.WorkerControlStub(control_channel)
        self._health = health_pb2_grpc.HealthStub(front)
        self.relay = relay_rpc.RelayStub(front)

    def close(self) -> None:
        """Hang up."""
        for channel in self._channels:
            channel.close()

    def meet(self, claims: frozenset[Capability] | None) -> None:
        """Learn the epoch, the model and the claims, which `claims` replaces. Raises Refused, Blocked."""
        status = self.settled()
        self.epoch = status.epoch + 1
        known = set(Capability)
        said = frozenset(Capability(name) for name in status.capabilities if name in known)
        self.claims = said if claims is None else claims
        self.model = self.ask("GetModel", pb.GetModelRequest())

    @property
    def to_operator(self) -> Proof:
        """Return the metadata of an operator."""
        return self.target.operator.proof(self.target.pod_uid)

    @property
    def to_gateway(self) -> Proof:
        """Return the metadata of a gateway."""
        return self.target.gateway.proof(self.target.pod_uid)

    # -- calls ---------------------------------------------------------------------------------------------------

    def command(self, method: str, *, proof: Proof | None = None, **fields: Any) -> Any:
        """Give a command, in our epoch unless the fields say another. Raises Refused."""
        message = getattr(control, f"{method}Request")
        if "epoch" in message.DESCRIPTOR.fields_by_name:
            fields.setdefault("epoch", self.epoch)
        metadata = self.to_operator if proof is None else proof
        with refusing(method):
            return getattr(self._control, method)(
                message(**fields), timeout=self.target.patience_s, metadata=metadata, wait_for_ready=True
            )

    def status(self) -> control.WorkerStatus:
        """Return the status. Raises Refused."""
        status: control.WorkerStatus = self.command("GetStatus")
        return status

    def ask(self, method: str, request: Any, *, proof: Proof = ()) -> Any:
        """Call a method of Inference that has one answer. Raises Refused."""
        with refusing(method):
            return getattr(self._inference, method)(
                request, timeout=self.target.patience_s, metadata=proof, wait_for_ready=True
            )

    @contextmanager
    def watching(self, method: str) -> Iterator[Iterator[Any]]:
        """Follow WatchStatus or WatchLoad; its end and its errors are Refused."""
        patience_s = self.target.patience_s
        if method == "WatchStatus":
            call = self._control.WatchStatus(control.GetStatusRequest(), timeout=patience_s, metadata=self.to_operator)
        else:
            call = self._inference.WatchLoad(pb.WatchLoadRequest(), timeout=patience_s, metadata=self.to_gateway)
        try:
            with refusing(method):
                yield call
        finally:
            call.cancel()

    def begin(self, request: pb.GenerateRequest, *, proof: Proof = (), timeout_s: float = 0.0) -> Stream:
        """Begin a stream; nothing is read yet."""
        call = self._inference.Generate(request, timeout=timeout_s or self.target.patience_s, metadata=proof)
        return Stream(call, refusing)

    @contextmanager
    def running(self) -> Iterator[Stream]:
        """Have a stream of which the first message came, and that goes on; leave it afterwards."""
        stream = self.begin(self.long_request())
        try:
            stream.first()
            yield stream
        finally:
            stream.cancel()

    def generate(self, request: pb.GenerateRequest, *, proof: Proof = ()) -> Answer:
        """Return a whole answer. Raises Refused."""
        return self.begin(request, proof=proof).rest()

    def send_bytes(self, garbage: bytes) -> None:
        """Send Generate what is no message. Raises Refused."""
        call = self._channels[0].unary_stream(f"/{INFERENCE_SERVICE}/Generate", None, None)
        with refusing("Generate"):
            for _ in call(garbage, timeout=self.target.patience_s):
                pass

    def is_serving(self) -> bool:
        """Return the health of Inference. Raises Refused."""
        request = health_pb2.HealthCheckRequest(service=INFERENCE_SERVICE)
        with refusing("Health/Check"):
            status = self._health.Check(request, timeout=self.target.patience_s).status
        return bool(status == health_pb2.HealthCheckResponse.SERVING)

    # -- prompts -------------------------------------------------------------------------------------------------

    def prompt(self, length: int = 12, start: int = 3) -> list[int]:
        """Return token ids that the model knows."""
        size = min(self.model.vocab_size, 1000)
        return [(start + 7 * place) % size for place in range(length)]

    def request(self, prompt: list[int] | None = None, **sampling: Any) -> pb.GenerateRequest:
        """Return a request for sixteen tokens, greedy, unless something else is said."""
        params = {"temperature": 0.0, "max_tokens": 16, "ignore_eos": True, **sampling}
        ids = self.prompt() if prompt is None else prompt
        return pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids), sampling_params=pb.SamplingParams(**params))

    def long_request(self) -> pb.GenerateRequest:
        """Return a request whose stream runs for a while."""
        return self.request(max_tokens=self.long_tokens)

    @property
    def long_tokens(self) -> int:
        """Return how many tokens that stream has."""
        return min(LONGEST, self.model.max_model_len - len(self.prompt()))

    # -- ways ----------------------------------------------------------------------------------------------------

    def until(self, holds: Callable[[control.WorkerStatus], object], expected: str) -> control.WorkerStatus:
        """Return the first status of which it holds. Raises Missed when patience ends."""
        end_s = time.monotonic() + self.target.patience_s
        while not holds(status := self.status()):
            if time.monotonic() > end_s:
                raise Missed(f"{expected} within {self.target.patience_s:g} s", told(status))
            time.sleep(LOOK_S)
        return status

    def until_idle(self) -> control.WorkerStatus:
        """Return the status when nothing runs any more. Raises Missed."""
        return self.until(lambda status: status.running_requests + status.waiting_requests == 0, "nothing runs")

    def settled(self) -> control.WorkerStatus:
        """Return the status once it is one that the worker stays in. Raises Blocked."""
        try:
            status = self.until(lambda status: status.state not in MOVING, "a state that stays")
        except Missed as missed:
            raise Blocked(str(missed)) from missed
        if status.state == control.WORKER_STATE_FAILED:
            raise Blocked(f"the worker has failed: {status.failure.reason}: {status.failure.message}")
        return status

    def ready(self) -> control.WorkerStatus:
        """Bring it to READY, with nothing running. Raises Blocked."""
        with _on_the_way("READY"):
            for _ in range(STEPS):
                status = self.settled()
                if status.state == control.WORKER_STATE_READY:
                    return self.until_idle()
                if status.state == control.WORKER_STATE_PROFILED:
                    self.command("InitializeCache", num_gpu_blocks=agreed(status.report))
                else:
                    self.command("WakeUp")
        raise Blocked(f"the worker did not become READY in {STEPS} steps; it is {told(status)}")

    def profiled(self) -> control.WorkerStatus:
        """Bring it to where it waits for the agreement. Raises Blocked."""
        with _on_the_way("PROFILED"):
            status = self.settled()
            if status.state == control.WORKER_STATE_PROFILED:
                return status
            if Capability.STANDBY not in self.claims:
                raise Blocked(f"it is {told(status)}, and claims no standby: ask a worker that has just started")
            self.command("Sleep", level=3, mode=control.DRAIN_MODE_ABORT)
            self.command("WakeUp")
            return self.until(lambda status: status.state == control.WORKER_STATE_PROFILED, "PROFILED")

    def asleep(self) -> control.WorkerStatus:
        """Let it sleep, at the lightest level that it claims but standby. Raises Blocked, Unclaimed."""
        levels = {Capability.SLEEP_LEVEL_1: 1, Capability.SLEEP_LEVEL_2: 2}
        level = next((level for name, level in levels.items() if name in self.claims), None)
        if level is None:
            raise Unclaimed(" or ".join(levels))
        self.ready()
        with _on_the_way("ASLEEP"):
            self.command("Sleep", level=level)
            return self.status()


@contextmanager
def _on_the_way(where: str) -> Iterator[None]:
    """Turn what goes wrong on the way to a state into Blocked."""
    try:
        yield
    except (Refused, Missed) as error:
        raise Blocked(f"the worker could not be brought to {where}: {error}") from error


@contextmanager
def refusing(method: str) -> Iterator[None]:
    """Turn gRPC's errors into Refused."""
    try:
        yield
    except grpc.RpcError as error:
        call: Any = error  # every RpcError that a call raises is a Call too
        trailing = dict(call.trailing_metadata() or ())
        details = read_details(call.code(), call.details() or "", trailing.get(STATUS_DETAILS, b""))
        raise Refused(method, details.code, details.message, details.retry_after_s, details.reason) from error


def agreed(report: control.MemoryReport) -> int:
    """Return a count of blocks as an operator might agree on: enough for two of the longest requests, and some."""
    if not report.block_size:
        return 0
    longest = -(-report.max_model_len // report.block_size)
    return min(report.num_gpu_blocks, 2 * longest + 8)


def told(status: control.WorkerStatus) -> str:
    """Return a status in short."""
    state = control.WorkerState.Name(status.state).removeprefix("WORKER_STATE_")
    return f"{state}, {status.num_gpu_blocks} blocks, {status.running_requests} requests run"
