"""A fake engine without torch, and the program that it can be; as a task of a test see `in_process`.

`python -m dormouse_worker.testing.fake_engine --socket PATH --script JSON` speaks `ipc` as the real engine does: it
loads at once, answers commands and gives every request the script's tokens.
"""

from __future__ import annotations

import argparse
import socket
import sys
from array import array
from typing import Any

import msgspec

from dormouse_worker.common.commands import AbortAll, Command, InitializeCache, PrepareWakeUp, Sleep, WakeUp
from dormouse_worker.common.frames import FrameSplitter, decode_front, encode_frame
from dormouse_worker.common.ipc import (
    AbortRequests,
    AddRequest,
    CommandRequest,
    CommandResult,
    EngineMessage,
    EngineStatus,
    FrontMessage,
    Leave,
    ModelInfo,
    Sampling,
    State,
    StepOutputs,
    TokenLogprobs,
    TokenOutput,
)
from dormouse_worker.common.lifecycle import why_not
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.task_messages import AddDecision, AddPooling, AddWindow, PooledOutput, WindowOutput
from dormouse_worker.engine.decisions import requests_of
from dormouse_worker.engine.sleep_state import SleepState
from dormouse_worker.engine.testing import make_report

MODEL_LEN = 64  # tokens
FAKE_DIMENSIONS = 4  # of a vector, where the script says that the model makes some


class Script(msgspec.Struct, frozen=True):
    """How a fake engine behaves."""

    tokens: tuple[int, ...] = ()  # what every request gets, over and over, from its choice's on; () = its own prompt
    cached_tokens: int = 0  # of every prompt, found in the prefix cache
    failure: tuple[str, str] | None = None  # reason and message: FAILED instead of PROFILED
    model: ModelInfo = ModelInfo(1234, "float32", compute_path="native portable")
    refusals: dict[str, tuple[str, str]] = {}  # method → reason and message with which it is answered
    values: dict[str, str] = {}  # method → what it returns
    max_model_len: int = MODEL_LEN
    image_rows: int = 0  # 0 = the model reads no images
    tokenizer_path: str = ""  # what it made for a model without tokenizer.json
    tokenizer_problem: str = ""  # why it could not make one
    missing_bytes: int = 0  # what a prepared wake lacks
    hangs_at: str = ""  # never answers this command; "load": in this process, until `loaded` is set
    dies_at: str = ""  # ends with code 3 and a last word when this arrives: a method, or "request"


class FakeDeath(Exception):
    """The script says that the engine ends here."""


class FakeEngine:
    """The engine's side of the conversation, without a socket. Records what it received."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.received: list[FrontMessage] = []
        self.status = EngineStatus(state=State.STARTING)
        self.has_muted_vectors = False  # calls for vectors get none, until they are aborted
        self._muted: set[str] = set()
        self._requests: dict[str, AddRequest] = {}
        self._counts: dict[str, int] = {}  # output tokens so far, resumed ones included
        self._silent: set[str] = set()  # requests of which no output told anything yet

    def __repr__(self) -> str:
        return f"FakeEngine({self.status.state}, {len(self._requests)} requests)"

    @property
    def commands(self) -> list[Command]:
        """Return the commands that it received."""
        return [message.command for message in self.received if isinstance(message, CommandRequest)]

    @property
    def has_work(self) -> bool:
        """Return whether a step would give tokens."""
        return bool(self._requests)

    def load(self) -> list[EngineMessage]:
        """Return what an engine says after loading."""
        if self.script.failure is not None:
            reason, message = self.script.failure
            return [self._change(State.FAILED, failure_reason=reason, failure_message=message)]
        limits = {"max_model_len": self.script.max_model_len, "image_rows": self.script.image_rows}
        report = make_report(**limits, num_gpu_blocks=100, gpu_memory_utilization=0.5)
        told = {name: getattr(self.script, name) for name in ("model", "tokenizer_path", "tokenizer_problem")}
        return [self._change(State.PROFILED, report=report, **told)]

    def begin(self) -> list[EngineMessage]:
        """Return what an engine says first."""
        return [self._change(State.LOADING)]

    def handle(self, message: FrontMessage) -> list[EngineMessage]:
        """Take one message and return the answers. Raises FakeDeath where the script says so."""
        self.received.append(message)
        if isinstance(message, CommandRequest):
            self._die_at(message.command.method)
            return self._run(message.command, message.command_id)
        if isinstance(message, AddDecision):
            for request in requests_of(message):
                self.handle(request)
            return []
        if isinstance(message, AddRequest):
            self._die_at("request")
            self._requests[message.request_id] = message
            self._counts[message.request_id] = len(message.output_token_ids)
            self._silent.add(message.request_id)
            return []
        if isinstance(message, AddPooling):
            if self.has_muted_vectors:
                self._muted.add(message.request_id)
                return []
            vectors = [fake_vector(text, message.params.dimensions) for text in message.inputs]
            pooled = [PooledOutput(message.request_id, vectors, "stop", 0.25, 0.5)]
            return [StepOutputs([], running=0, waiting=0, kv_cache_usage=0.0, pooled=pooled)]
        if isinstance(message, AddWindow):
            language = message.language_ids[0] if message.language_ids else -1
            heard = [WindowOutput(message.request_id, list(b" hi"), language_id=language, num_tokens=4)]
            return [StepOutputs([], running=0, waiting=0, kv_cache_usage=0.0, windows=heard)]
        if isinstance(message, Leave):
            return []
        muted = [key for key in message.request_ids if key in self._muted]
        self._muted.difference_update(muted)
        if muted:
            pooled = [PooledOutput(key, [], "abort") for key in muted]
            return [StepOutputs([], running=0, waiting=0, kv_cache_usage=0.0, pooled=pooled)]
        known = [key for key in message.request_ids if self._requests.pop(key, None)]
        return [self._outputs([TokenOutput(key, [], "abort") for key in known])] if known else []

    def step(self) -> list[EngineMessage]:
        """Give every request one token."""
        outputs = [self._next(request) for request in list(self._requests.values())]
        return [self._outputs(outputs)] if outputs else []

    def _next(self, request: AddRequest) -> TokenOutput:
        key, sampling = request.request_id, request.sampling
        is_first = key in self._silent
        self._silent.discard(key)
        if is_first and sampling.prompt_logprobs is not None:  # as after a chunk of a long prompt: no token yet
            return TokenOutput(key, [], prompt_logprobs=fake_prompt_logprobs(request))
        count = self._counts[key]
        tokens = self.script.tokens or request.prompt_token_ids
        token = tokens[(count + sampling.choice_index) % len(tokens)]
        self._counts[key] = count + 1
        reason = "length" if count + 1 >= sampling.max_tokens else None
        if token in sampling.stop_token_ids and count + 1 > sampling.min_tokens:
            reason = "stop"
        if reason:
            del self._requests[key], self._counts[key]
        logprobs = None if sampling.logprobs is None else [_fake_logprobs(-0.5, sampling)]
        return TokenOutput(key, [token], reason, logprobs, 0.25, 0.5, self.script.cached_tokens)

    def _run(self, command: Command, command_id: int) -> list[EngineMessage]:
        if command.method in self.script.refusals:
            return [CommandResult(command_id, *self.script.refusals[command.method])]
        if command.method == self.script.hangs_at:
            return []
        if why := why_not(type(command).__name__, self.status.state, self.status.sleep_level):
            return [CommandResult(command_id, "WrongState", why)]
        done = CommandResult(command_id, value=self.script.values.get(command.method, ""))
        if isinstance(command, PrepareWakeUp):
            done = CommandResult(command_id, value=self.script.missing_bytes)
        return [*self._carry_out(command), done]

    def _carry_out(self, command: Command) -> list[EngineMessage]:
        if isinstance(command, InitializeCache):
            initializing = self._change(State.INITIALIZING)
            return [initializing, self._change(State.READY, **msgspec.structs.asdict(command))]
        if isinstance(command, AbortAll):
            return self.handle(AbortRequests([*self._requests, *self._muted]))
        if isinstance(command, Sleep):
            fields = {"residual_bytes": 7, "freed_bytes": 993, "last_sleep_seconds": 0.5}
            sleep_state = self._sleep_state_after(command)
            depth = {"sleep_level": sleep_state.level, "sleeping_tags": sleep_state.tags}
            return [self._change(State.ASLEEP, num_gpu_blocks=0, **depth, **fields)]
        if isinstance(command, WakeUp) and self.status.state is not State.READY:
            awake = {"sleep_level": 0, "sleeping_tags": (), "num_gpu_blocks": 50, "last_wake_seconds": 1.5}
            return [self._change(State.WAKING), self._change(State.READY, **awake)]
        return []

    def _sleep_state_after(self, command: Sleep) -> SleepState:
        before = SleepState(dict.fromkeys(self.status.sleeping_tags, self.status.sleep_level))
        return before.deepen(command.level, command.tags)

    def _die_at(self, what: str) -> None:
        if self.script.dies_at == what:
            raise FakeDeath(f"fake engine ends at {what}")

    def _outputs(self, outputs: list[TokenOutput]) -> StepOutputs:
        running = len(self._requests)
        return StepOutputs(outputs, running=running, waiting=0, kv_cache_usage=running / 100)

    def _change(self, state: State, **fields: Any) -> EngineStatus:
        self.status = msgspec.structs.replace(self.status, state=state, **fields)
        return self.status


def fake_prompt_logprobs(request: AddRequest) -> list[TokenLogprobs]:
    """Return what a fake engine says of a prompt: of each token but the first, its id as a negative number."""
    asked = msgspec.structs.replace(request.sampling, logprobs=request.sampling.prompt_logprobs, logprob_token_ids=())
    return [_fake_logprobs(-float(token), asked) for token in request.prompt_token_ids[1:]]


def fake_vector(text: list[int], dimensions: int = 0) -> bytes:
    """Return what a fake engine makes of a text: its length, and its first tokens."""
    numbers = [float(len(text)), *map(float, text), *[0.0] * FAKE_DIMENSIONS]
    return array("f", numbers[: dimensions or FAKE_DIMENSIONS]).tobytes()


def _fake_logprobs(sampled: float, sampling: Sampling) -> TokenLogprobs:
    """Return what a fake engine says of a token; a named one is the less likely the higher its id."""
    top = list(range(sampling.logprobs or 0))
    return TokenLogprobs(
        sampled, top, [-1.0 - i for i in top], [-token_id / 64 for token_id in sampling.logprob_token_ids]
    )


def fake_engine_argv(script: Script) -> tuple[str, ...]:
    """Return the command line of a fake engine as a program."""
    return (
        sys.executable,
        "-m",
        "dormouse_worker.testing.fake_engine",
        "--script",
        msgspec.json.encode(script).decode(),
    )


def main() -> int:
    """Run a fake engine as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--script", default="{}")
    flags = parser.parse_args()
    msgspec.json.decode(sys.stdin.buffer.read(), type=EngineSettings)
    engine, splitter = FakeEngine(msgspec.json.decode(flags.script, type=Script)), FrameSplitter()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(flags.socket)
        connection.sendall(encode_frame([*engine.begin(), *engine.load()]))
        while data := connection.recv(1 << 16):
            for message in [m for payload in splitter.feed(data) for m in decode_front(payload)]:
                try:
                    connection.sendall(encode_frame(engine.handle(message)))
                except FakeDeath as death:
                    print(death, file=sys.stderr)
                    return 3
            while engine.has_work:
                connection.sendall(encode_frame(engine.step()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
