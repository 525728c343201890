"""Two groups behind a gateway, a rank of one killed under load: real fronts, engines, ranks and a real gateway."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier

import grpc
from rich.console import Console

from bench.front_door import NAME, open_door
from bench.models import ensure_model
from bench.worker import Worker, free_port_pair
from dormouse_api.limits import channel_options
from dormouse_api.v1 import inference_pb2 as pb
from dormouse_api.v1 import inference_pb2_grpc as rpc

MODEL = "tiny"
TIMEOUT_S = 120.0
NUM_STREAMS = 8
NUM_TOKENS = 400  # more than come before the kill
PROMPT = [1, 2, 3]
FLAGS = ("--pipeline-parallel-size", "2", "--threads", "1", "--engine-restart-window", "1")  # each kill is the first


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a kill came to."""

    rank: int  # that was killed
    start_s: float  # the group's own start: its front's first answer to its first token
    recovery_s: float  # the kill to the next token of this group
    num_streams: int
    num_lost: int  # streams that ended early, or with other tokens
    num_others_ended: int  # rank processes of the other group that are not there any more

    def __str__(self) -> str:
        others = f"{self.num_lost} of {self.num_streams} streams lost, {self.num_others_ended} ranks of the other group"
        return f"rank {self.rank}: start {self.start_s:.1f} s, after a kill {self.recovery_s:.1f} s; {others} ended"


class Group:
    """Two pods of one rank each."""

    def __init__(self, model: Path) -> None:
        flags = (*FLAGS, "--master-addr", "127.0.0.1", "--master-port", str(free_port_pair()))
        self.leader = Worker(model, flags=flags)
        self._follower = Worker(model, flags=(*flags, "--node-rank", "1"))

    def __repr__(self) -> str:
        return f"Group({self.leader!r}, {self._follower!r})"

    def close(self) -> None:
        """End both pods."""
        self._follower.process.terminate()  # it keeps its ranks until the leader has let go of them
        self.leader.close()
        self._follower.close()

    def open(self) -> float:
        """Make it READY; return the seconds from its front's first answer to its first token."""
        statuses = self.leader.statuses()
        next(statuses)
        answered_s = time.monotonic()
        self.leader.open()
        self.say(1)
        return time.monotonic() - answered_s

    def say(self, num_tokens: int) -> list[int]:
        """Return what it says, asked directly."""
        return _tokens(self.leader.inference, "", num_tokens)

    @property
    def rank_pids(self) -> tuple[int, int]:
        """Return the processes of ranks 0 and 1."""
        (engine,) = _children(self.leader.process.pid)
        (first,), (second,) = _children(engine), _children(self._follower.process.pid)
        return first, second


def measure_recovery(console: Console) -> list[Recovery]:
    """Kill each rank of a group, one after the other."""
    model = ensure_model(MODEL)
    with contextlib.ExitStack() as stack:
        groups = []
        for _ in range(2):
            group = Group(model)
            stack.callback(group.close)
            groups.append((group, group.open()))
        (ill, start_s), (well, _) = groups
        door = stack.enter_context(open_door(model.name, ill.leader.port, well.leader.port))
        found = [_kill(rank, ill, well, door.port, start_s) for rank in (0, 1)]
    for recovery in found:
        console.print(f"  {recovery}", highlight=False)
    return found


def _kill(rank: int, ill: Group, well: Group, port: int, start_s: float) -> Recovery:
    """Kill a rank while streams flow through the gateway to both groups."""
    expected, others = well.say(NUM_TOKENS), set(well.rank_pids)
    with _streams(port) as (flowing, streams):
        flowing.wait(TIMEOUT_S)
        os.kill(ill.rank_pids[rank], signal.SIGKILL)
        killed_s = time.monotonic()
        ill.leader.open()
        ill.say(1)
        recovery_s = time.monotonic() - killed_s
        num_lost = count_lost([stream.result(TIMEOUT_S) for stream in streams], expected)
    return Recovery(rank, start_s, recovery_s, NUM_STREAMS, num_lost, len(others - set(well.rank_pids)))


def count_lost(said: Sequence[list[int]], expected: list[int]) -> int:
    """Return how many streams did not say what was expected."""
    return sum(tokens != expected for tokens in said)


@contextlib.contextmanager
def _streams(port: int) -> Iterator[tuple[Barrier, list[Future[list[int]]]]]:
    """Streams through the gateway, and where all that have their first token wait for each other and for us."""
    flowing = Barrier(NUM_STREAMS + 1)
    with (
        grpc.insecure_channel(f"127.0.0.1:{port}", options=channel_options()) as channel,
        ThreadPoolExecutor(NUM_STREAMS) as threads,
    ):
        stub = rpc.InferenceStub(channel)
        asked = [threads.submit(_tokens, stub, f"default/{NAME}", NUM_TOKENS, flowing) for _ in range(NUM_STREAMS)]
        yield flowing, asked


def _tokens(stub: rpc.InferenceStub, model: str, num_tokens: int, flowing: Barrier | None = None) -> list[int]:
    """Return the tokens that came, also where the stream ended with an error."""
    params = pb.SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    request = pb.GenerateRequest(model=model, token_ids=pb.TokenIds(ids=PROMPT), sampling_params=params)
    tokens: list[int] = []
    with contextlib.suppress(grpc.RpcError):
        for response in stub.Generate(request, timeout=TIMEOUT_S, wait_for_ready=True):
            if flowing is not None and not tokens:
                flowing.wait(TIMEOUT_S)
            tokens += response.token_ids
    return tokens


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
