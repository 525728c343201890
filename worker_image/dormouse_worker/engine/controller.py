"""Carries out the front's messages on one rank's worker, and owns that rank's state.

`STARTING → LOADING → PROFILED → INITIALIZING → READY → ASLEEP → WAKING → READY`, and FAILED from anywhere. Draining is
the front's: it stops sending and waits. Each change of state is sent as one `EngineStatus`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from dormouse_worker.common.commands import (
    AbortAll,
    AddLora,
    Command,
    InitializeCache,
    PrepareWakeUp,
    ResetMultimodalCache,
    ResetPrefixCache,
    Shutdown,
    Sleep,
    WakeUp,
)
from dormouse_worker.common.errors import Damaged, Internal, LogitsNotFinite, WorkerError, WrongState
from dormouse_worker.common.ipc import (
    AbortRequests,
    Added,
    CommandRequest,
    CommandResult,
    EngineMessage,
    FrontMessage,
    Leave,
    State,
)
from dormouse_worker.common.lifecycle import why_not
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.common.task_messages import AddDecision
from dormouse_worker.common.tasks import GENERATE
from dormouse_worker.engine import resting
from dormouse_worker.engine.adapter_commands import AdapterCommands
from dormouse_worker.engine.adapter_loads import AdapterLoads
from dormouse_worker.engine.assembly import build_stepper
from dormouse_worker.engine.decisions import requests_of
from dormouse_worker.engine.engine import NOT_FINITE
from dormouse_worker.engine.executor import Executor
from dormouse_worker.engine.executor_commands import executor_handlers
from dormouse_worker.engine.failures import Failures
from dormouse_worker.engine.intake import take
from dormouse_worker.engine.sleeping_parts import SleepingParts
from dormouse_worker.engine.start_up import load_and_profile
from dormouse_worker.engine.status import StatusTeller
from dormouse_worker.engine.stepping import Stepper
from dormouse_worker.engine.validation import check_block_counts

logger = logging.getLogger(__name__)

SAVE_BEFORE_SLEEP_S = 10.0  # whoever asked for the memory waits
SAVE_BEFORE_END_S = 3.0  # less than what an engine gets to end by itself
MAX_FAILURES_IN_A_ROW = 2  # one forward pass that raises costs its batch; the next one shows whether it was the batch


class Controller:
    """One rank's state, its worker and, once the cache is allocated, its engine, which stays over a sleep."""

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
        self._teller = StatusTeller(send)
        self._sleeping = SleepingParts(executor, self._teller, clock, settings)
        self._adapters = AdapterCommands(executor, settings.max_loras if settings.enable_lora else 0)
        self._loads = AdapterLoads(self._advance_load, tell=send, clock=clock)
        self._engine: Stepper | None = None
        self._agreed = (0, 0)  # block counts on the device and in host memory; kept over a sleep
        self.is_shut_down = False
        self._failures = Failures(executor, self._teller, self._drop_engine)
        self._handlers: dict[type[Command], Callable[[Any], int | str | None]] = {
            InitializeCache: self._initialize_cache,
            AbortAll: self._abort_all,
            Sleep: self._sleep,
            PrepareWakeUp: lambda command: self._sleeping.prepare_wake_up(command.tags),  # the missing bytes
            WakeUp: self._wake_up,
            ResetPrefixCache: self._reset_prefix_cache,
            ResetMultimodalCache: lambda _: resting.forget_images(self._engine, executor),
            Shutdown: self._shutdown,
            **self._adapters.handlers,
            **executor_handlers(executor),
        }

    def __repr__(self) -> str:
        return f"Controller({self.state}, {self._engine!r})"

    @property
    def state(self) -> State:
        """Return the state last sent."""
        return self._teller.status.state

    @property
    def has_work(self) -> bool:
        """Return whether a step would compute something."""
        return self._loads.is_under_way or (self._engine is not None and self._engine.has_work)

    @property
    def is_broken(self) -> bool:
        """Return whether only a new process can compute again: what the failures left behind is unknown."""
        return self._engine is not None and self._engine.num_failures_in_a_row >= MAX_FAILURES_IN_A_ROW

    def check_group(self) -> None:
        """Raise GroupBroken, naming the rank, if a group of ranks cannot go on: whoever asked has been told."""
        self._failures.check_group()

    def start(self) -> None:
        """Load and profile. Ends in PROFILED, or in FAILED with the reason; raises nothing."""
        try:
            load_and_profile(self._executor, self._teller)
        except Exception as error:  # noqa: BLE001  the pod stays up and says why
            self._failures.fail(error)

    def handle(self, message: FrontMessage) -> None:
        """Carry out one message of the front; raises nothing."""
        if isinstance(message, Added):
            self._add(message)
        elif isinstance(message, AddDecision):
            for request in requests_of(message):
                self._add(request)
        elif isinstance(message, AbortRequests):
            self._abort(message)
        elif isinstance(message, Leave):
            resting.leave(self._engine, message)
        elif isinstance(message.command, AddLora):
            self._loads.begin(message)
        else:
            self._loads.make_way(message.command)
            self._send(self._run_command(message))

    def step(self) -> None:
        """Compute one step if there is work and send what came out."""
        outputs = self._engine.step() if self._engine is not None else None
        if outputs is not None:
            self._send(outputs)
            self._look_at_numbers()
            self._adapters.forget_unused()
        self._loads.turn(is_beside_passes=outputs is not None)

    def rest(self) -> None:
        """Nothing runs: recount the blocks, if there are any, and let them outlive us. Raises RuntimeError."""
        if self._engine is not None and (counted := resting.rest(self._engine, self._teller.status)) is not None:
            self._send(counted)

    def save_blocks(self, timeout_s: float) -> None:
        """Let cached blocks outlive their memory, or this process, as far as there is time."""
        if self._engine is not None and not self.is_shut_down:
            resting.save_blocks(self._engine, self._teller.status, timeout_s)

    def _look_at_numbers(self) -> None:
        """Enter FAILED if the last passes had no finite row and it is the model's fault: prompts may bring it about."""
        engine = self._engine
        if engine is None or engine.num_odd_in_a_row < MAX_FAILURES_IN_A_ROW:
            return
        self._settle()
        if why := engine.verify(self._executor):
            self._send(engine.give_up(NOT_FINITE))
            self._failures.fail(
                LogitsNotFinite(f"{MAX_FAILURES_IN_A_ROW} forward passes in a row: {NOT_FINITE} ({why})")
            )

    def _add(self, message: Added) -> None:
        if self._engine is not None and self._engine.is_leaving(message.request_id):
            self._settle()
        if (refusal := take(message, self._engine, self._teller.status)) is not None:
            self._send(refusal)

    def _abort(self, message: AbortRequests) -> None:
        if self._engine is not None and (outputs := self._engine.abort(message.request_ids)):
            self._send(self._engine.outputs([*outputs]))
            self._adapters.forget_unused()

    def _settle(self) -> None:
        """Wait for the batches under way, and send what came out. Raises GroupBroken."""
        for outputs in self._engine.settle() if self._engine is not None else ():
            self._send(outputs)

    def _run_command(self, request: CommandRequest) -> CommandResult:
        def run(command: Command) -> int | str:
            self._settle()
            self._require_state(command)
            return self._handlers[type(command)](command) or ""

        return self._result(request, run)

    def _advance_load(self, request: CommandRequest, seconds: float) -> CommandResult | None:
        def advance(command: Any) -> str | None:
            self._require_state(command)
            return self._adapters.add(command, seconds)

        result = self._result(request, advance)
        return result if result.error_reason or result.value else None

    def _result(self, request: CommandRequest, run: Callable[[Any], int | str | None]) -> CommandResult:
        command_id, command = request.command_id, request.command
        try:
            value = run(command)
        except WorkerError as error:
            self._failures.note(error)
            logger.warning("%s refused: %s", command.method, error)
            return CommandResult(command_id, error.reason, str(error))
        except Exception as error:
            logger.exception("%s failed", command.method)
            return CommandResult(command_id, Internal.__name__, f"{type(error).__name__}: {error}")
        return CommandResult(command_id, value=value or "")

    def _require_state(self, command: Command) -> None:
        if why := why_not(type(command).__name__, self.state, self._teller.status.sleep_level):
            raise WrongState(why)

    def _initialize_cache(self, command: InitializeCache) -> None:
        counts = (command.num_gpu_blocks, command.num_cpu_blocks)
        if counts == self._agreed and self.state is State.READY:
            return
        self._require_idle("initialize_cache with another count")
        report = self._teller.report
        check_block_counts(report, *counts)
        self._engine = None
        self._teller.change(State.INITIALIZING, num_gpu_blocks=0, num_cpu_blocks=0)
        with self._failures.passing_refusals(Damaged):
            try:
                self._executor.initialize_cache(*counts)
            except Damaged:
                raise
            except WorkerError:
                self._teller.change(State.PROFILED)
                raise
        self._agreed = counts
        model = self._teller.status.model
        self._engine = build_stepper(
            self._settings,
            report,
            self._agreed,
            self._executor,
            clock=self._clock,
            adapters=self._adapters.slots,
            task=model.task if model is not None else GENERATE,
        )
        self._open()

    def _abort_all(self, _: AbortAll | Shutdown) -> None:
        if self._engine is not None and self._engine.has_work:
            self._send(resting.give_up(self._engine))

    def _sleep(self, command: Sleep) -> None:
        self._require_idle("sleep")
        self.save_blocks(SAVE_BEFORE_SLEEP_S)
        with self._failures.passing_refusals():
            self._sleeping.sleep(command, self._built())

    def _wake_up(self, command: WakeUp) -> None:
        with self._failures.passing_refusals(Damaged):
            if self._sleeping.wake_up(command.tags, self._built()):
                self._adapters.note_wake()
                if self._settings.asks_model:  # which may not have come back
                    self._teller.note(model=self._executor.get_model_info())
                self._open()

    def _reset_prefix_cache(self, _: ResetPrefixCache) -> None:
        if self._engine is not None:  # else there is no cache
            self._engine.forget_prefixes()
            self._engine.keeper.clear()

    def _shutdown(self, command: Shutdown) -> None:
        self._abort_all(command)
        self.save_blocks(SAVE_BEFORE_END_S)
        self.is_shut_down = True
        self._executor.shutdown()

    def _open(self) -> None:
        """Enter READY; the ranks know nothing of any sequence yet, or any more."""
        self._built().forget_ranks()
        self._built().keeper.leave(is_leaving=False)  # the front has forgotten a draining
        num_gpu_blocks, num_cpu_blocks = self._agreed
        self._teller.change(State.READY, num_gpu_blocks=num_gpu_blocks, num_cpu_blocks=num_cpu_blocks)

    def _built(self) -> Stepper:
        assert self._engine is not None, "READY and ASLEEP have one"
        return self._engine

    def _require_idle(self, what: str) -> None:
        if self._engine is not None and self._engine.has_work:
            raise WrongState(f"{what} needs an idle worker; {self._engine.num_requests} requests are unfinished")

    def _drop_engine(self) -> None:
        self._engine = None
