"""Carries out the front's messages on one rank's worker, and owns that rank's state.

`STARTING → LOADING → PROFILED → INITIALIZING → READY → ASLEEP → WAKING → READY`, and FAILED from anywhere. Draining is
the front's: it stops sending and waits. Each change of state is sent as one `EngineStatus`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from dormouse_worker.engine.assembly import build_engine
from dormouse_worker.engine.engine import Engine
from dormouse_worker.engine.executor import Executor
from dormouse_worker.engine.profiling import ProfileCommands
from dormouse_worker.engine.validation import check_block_counts
from dormouse_worker.errors import GoldenTokensDiffer, Internal, InvalidArgument, WorkerError, WrongState
from dormouse_worker.ipc import (
    AbortRequests,
    AddRequest,
    Command,
    CommandResult,
    EngineMessage,
    EngineStatus,
    FrontMessage,
    MemoryReport,
    State,
    StepOutputs,
)
from dormouse_worker.settings import EngineSettings

logger = logging.getLogger(__name__)

MAX_FAILURES_IN_A_ROW = 2  # one forward pass that raises costs its batch; the next one shows whether it was the batch


class Controller:
    """One rank's state, its worker and, between allocation and sleep, its engine."""

    def __init__(
        self,
        settings: EngineSettings,
        executor: Executor,
        *,
        send: Callable[[EngineMessage], None],
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._executor = executor
        self._send = send
        self._clock = clock
        self._status = EngineStatus(state=State.STARTING)
        self._engine: Engine | None = None
        self._agreed = (0, 0)  # block counts on the device and in host memory; kept over a sleep
        self.is_shut_down = False
        profile = ProfileCommands(executor, lambda: self.state)
        self._commands: dict[str, Callable[[Command], str | None]] = {
            "initialize_cache": self._initialize_cache,
            "sleep": self._sleep,
            "wake_up": self._wake_up,
            "reset_prefix_cache": self._reset_prefix_cache,
            "start_profile": profile.start,
            "stop_profile": profile.stop,
            "check_health": self._check_health,
            "shutdown": self._shutdown,
        }

    def __repr__(self) -> str:
        return f"Controller({self.state}, {self._engine!r})"

    @property
    def state(self) -> State:
        """Return the state last sent."""
        return self._status.state

    @property
    def has_work(self) -> bool:
        """Return whether a step would compute something."""
        return self._engine is not None and self._engine.has_work

    @property
    def is_broken(self) -> bool:
        """Return whether only a new process can compute again: what the failures left behind is unknown."""
        return self._engine is not None and self._engine.num_failures_in_a_row >= MAX_FAILURES_IN_A_ROW

    def start(self) -> None:
        """Load and profile. Ends in PROFILED, or in FAILED with the reason; raises nothing."""
        try:
            self._change(State.LOADING)
            self._executor.init_device()
            self._executor.load_model()
            self._status = msgspec.structs.replace(
                self._status,
                model=self._executor.get_model_info(),
                tokenizer_path=self._executor.convert_tokenizer(),
            )
            self._executor.determine_num_available_blocks()
            self._change(State.PROFILED, report=self._executor.get_memory_report())
        except Exception as error:  # noqa: BLE001  the pod stays up and says why
            self._fail(error)

    def handle(self, message: FrontMessage) -> None:
        """Carry out one message of the front; raises nothing."""
        if isinstance(message, AddRequest):
            self._add(message)
        elif isinstance(message, AbortRequests):
            self._abort(message)
        else:
            self._send(self._run_command(message))

    def step(self) -> None:
        """Compute one step if there is work and send what came out."""
        outputs = self._engine.step() if self._engine is not None else None
        if outputs is not None:
            self._send(outputs)

    def check_integrity(self) -> None:
        """Recount the blocks, if there are any. Raises RuntimeError."""
        if self._engine is not None:
            self._engine.check_integrity()

    def _add(self, message: AddRequest) -> None:
        if self._engine is None or self.state is not State.READY:
            why = f"the worker is {self.state} and takes no requests"
            self._send(StepOutputs([], running=0, waiting=0, kv_cache_usage=0.0, failed={message.request_id: why}))
            return
        refusal = self._engine.add(message)
        if refusal is not None:
            self._send(self._engine.outputs([], {message.request_id: refusal}))

    def _abort(self, message: AbortRequests) -> None:
        if self._engine is not None and (outputs := self._engine.abort(message.request_ids)):
            self._send(self._engine.outputs(outputs))

    def _run_command(self, command: Command) -> CommandResult:
        try:
            value = self._commands.get(command.method, self._refuse_unknown)(command)
        except WorkerError as error:
            logger.warning("%s refused: %s", command.method, error)
            return CommandResult(command.command_id, error.reason, str(error))
        except Exception as error:
            logger.exception("%s failed", command.method)
            return CommandResult(command.command_id, Internal.__name__, f"{type(error).__name__}: {error}")
        return CommandResult(command.command_id, value=value or "")

    def _refuse_unknown(self, command: Command) -> None:
        raise InvalidArgument(f"method {command.method!r} is unknown; known are {', '.join(self._commands)}")

    def _initialize_cache(self, command: Command) -> None:
        num_gpu_blocks, num_cpu_blocks = _integer(command, "num_gpu_blocks"), _integer(command, "num_cpu_blocks", 0)
        if self.state not in {State.PROFILED, State.READY}:
            raise WrongState(f"initialize_cache needs PROFILED or READY; the worker is {self.state}")
        if (num_gpu_blocks, num_cpu_blocks) == self._agreed and self.state is State.READY:
            return
        self._require_idle("initialize_cache with another count")
        report = self._report()
        check_block_counts(report, num_gpu_blocks, num_cpu_blocks)
        self._engine = None
        self._change(State.INITIALIZING, num_gpu_blocks=0, num_cpu_blocks=0)
        try:
            self._executor.initialize_cache(num_gpu_blocks, num_cpu_blocks)
        except WorkerError:
            self._change(State.PROFILED)
            raise
        except Exception as error:
            self._fail(error)
            raise
        self._agreed = (num_gpu_blocks, num_cpu_blocks)
        self._open()

    def _sleep(self, command: Command) -> None:
        level, mode = _integer(command, "level", 2), command.args.get("mode", "drain")
        if level != 2:
            raise InvalidArgument(f"level is {level}; level 1 comes with a later version; use 2")
        if mode not in {"drain", "abort"}:
            raise InvalidArgument(f"mode is {mode!r}; allowed are drain and abort")
        if self.state is State.ASLEEP:
            return
        if self._engine is None or self.state is not State.READY:
            raise WrongState(f"sleep needs READY; the worker is {self.state}")
        if mode == "abort":
            self._send(self._engine.outputs(self._engine.abort_all()))
        self._require_idle("sleep without mode=abort")
        self._go_to_sleep(level)

    def _go_to_sleep(self, level: int) -> None:
        started_s = self._clock()
        try:
            report = self._executor.sleep(level)
        except Exception as error:
            self._fail(error)
            raise
        self._engine = None
        self._change(
            State.ASLEEP,
            num_gpu_blocks=0,
            num_cpu_blocks=0,
            sleep_level=level,
            freed_bytes=report.freed_bytes,
            residual_bytes=report.residual_bytes,
            last_sleep_seconds=self._clock() - started_s,
        )

    def _wake_up(self, command: Command) -> None:
        del command  # wake_up has no arguments yet
        if self.state is State.READY:
            return
        if self.state is not State.ASLEEP:
            raise WrongState(f"wake_up needs ASLEEP; the worker is {self.state}")
        started_s = self._clock()
        self._change(State.WAKING)
        try:
            self._executor.wake_up()
        except GoldenTokensDiffer as error:
            self._fail(error)
            raise
        except WorkerError:
            self._change(State.ASLEEP)  # refused: asleep and intact, a later wake may fit
            raise
        except Exception as error:
            self._fail(error)
            raise
        self._open(sleep_level=0, residual_bytes=0, last_wake_seconds=self._clock() - started_s)

    def _reset_prefix_cache(self, command: Command) -> None:
        del command  # reset_prefix_cache has no arguments
        if self._engine is not None:  # else there is no cache
            self._engine.forget_prefixes()

    def _check_health(self, command: Command) -> None:
        del command  # check_health has no arguments
        self._executor.check_health()

    def _shutdown(self, command: Command) -> None:
        del command  # shutdown has no arguments
        if self._engine is not None and self._engine.has_work:
            self._send(self._engine.outputs(self._engine.abort_all()))
        self.is_shut_down = True
        self._executor.shutdown()

    def _open(self, **fields: object) -> None:
        """Enter READY with a fresh engine over the agreed blocks."""
        num_gpu_blocks, num_cpu_blocks = self._agreed
        self._engine = build_engine(self._settings, self._report(), self._agreed, self._executor, clock=self._clock)
        self._change(State.READY, num_gpu_blocks=num_gpu_blocks, num_cpu_blocks=num_cpu_blocks, **fields)

    def _report(self) -> MemoryReport:
        assert self._status.report is not None, "only before PROFILED is there no report"
        return self._status.report

    def _require_idle(self, what: str) -> None:
        if self._engine is not None and self._engine.has_work:
            raise WrongState(f"{what} needs an idle worker; {self._engine.num_requests} requests are unfinished")

    def _change(self, state: State, **fields: object) -> None:
        self._status = msgspec.structs.replace(self._status, state=state, **fields)
        logger.info("state %s", state)
        self._send(self._status)

    def _fail(self, error: Exception) -> None:
        """Enter FAILED; requests that were running can not be there in any state that leads here."""
        known = isinstance(error, WorkerError)
        if not known:
            logger.error("unexpected failure in %s", self.state, exc_info=error)
        self._engine = None
        self._change(
            State.FAILED,
            report=self._executor.get_memory_report(),
            num_gpu_blocks=0,
            num_cpu_blocks=0,
            failure_reason=error.reason if isinstance(error, WorkerError) else Internal.__name__,
            failure_message=str(error) if known else f"{type(error).__name__}: {error}",
        )


def _integer(command: Command, name: str, default: int | None = None) -> int:
    value = command.args.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"{name} is {value!r}; {command.method} needs an integer")
    return value
