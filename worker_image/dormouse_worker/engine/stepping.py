"""What the controller needs of an engine, whatever its passes give: tokens, vectors, or tokens of sound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from dormouse_worker.common.ipc import Added, StepOutputs
from dormouse_worker.engine.executor import Executor
from dormouse_worker.engine.images.encoder_cache import EncoderCache
from dormouse_worker.engine.no_keeper import NoKeeper


class Stepper(Protocol):
    """Turns requests into outputs, one forward pass per step. `Engine` says what each method does."""

    num_failures_in_a_row: int  # forward passes that raised since the last good one
    num_odd_in_a_row: int  # of which nothing was finite
    keeper: NoKeeper  # of what outlives the engine
    images: EncoderCache  # without room where none are read

    @property
    def has_work(self) -> bool: ...  # noqa: D102

    @property
    def num_requests(self) -> int: ...  # noqa: D102

    @property
    def cached_blocks(self) -> tuple[int, ...]: ...  # noqa: D102

    def add(self, message: Added) -> str | None: ...  # noqa: D102

    def abort(self, request_ids: list[str]) -> Sequence[Any]:
        """Free these requests; return their last outputs, which `outputs` takes."""

    def abort_all(self) -> Sequence[Any]:
        """Free every request; return as `abort`."""

    def step(self) -> StepOutputs | None: ...  # noqa: D102

    def settle(self) -> Iterator[StepOutputs]: ...  # noqa: D102

    def is_leaving(self, request_id: str) -> bool: ...  # noqa: D102

    def give_up(self, why: str) -> StepOutputs: ...  # noqa: D102

    def outputs(
        self,
        outputs: list[Any],
        failed: dict[str, str] | None = None,
        *,
        refused: dict[str, str] | None = None,
        num_odd: int = 0,
    ) -> StepOutputs:
        """Return a message with these outputs and the present load."""

    def forget_ranks(self) -> None: ...  # noqa: D102

    def forget_prefixes(self) -> None: ...  # noqa: D102

    def verify(self, executor: Executor) -> str: ...  # noqa: D102

    def check_integrity(self) -> None: ...  # noqa: D102


@runtime_checkable
class BringsEngine(Protocol):
    """An executor with an engine of its own in place of ours."""

    def make_stepper(self) -> Stepper:
        """Return an idle engine over the allocated cache."""
