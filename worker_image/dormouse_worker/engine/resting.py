"""What is done where nothing runs, or nothing will: blocks are recounted, and let outlive their memory."""

from __future__ import annotations

import msgspec

from dormouse_worker.common.commands import KV_CACHE
from dormouse_worker.common.ipc import EngineStatus, Leave, StepOutputs
from dormouse_worker.engine.executor import Executor, SeeingExecutor
from dormouse_worker.engine.stepping import Stepper


def rest(engine: Stepper, status: EngineStatus) -> StepOutputs | None:
    """Recount the blocks, and save some; return what was counted of saved ones. Raises RuntimeError."""
    engine.check_integrity()
    if not _is_cache_awake(status):
        return None
    engine.keeper.save_some()
    counts = engine.keeper.take_counts()
    return None if counts is None else msgspec.structs.replace(engine.outputs([]), kv_store=counts)


def save_blocks(engine: Stepper, status: EngineStatus, timeout_s: float) -> None:
    """Save cached blocks as far as there is time."""
    if _is_cache_awake(status):
        engine.keeper.save_all(timeout_s)


def leave(engine: Stepper | None, message: Leave) -> None:
    """Let requests take their blocks along, if there are any."""
    if engine is not None:
        engine.keeper.leave(is_leaving=message.is_leaving, to_peers=message.to_peers)


def forget_images(engine: Stepper | None, executor: Executor) -> None:
    """Forget encoded images, kept ones too: at once where nobody runs, else with the next pass what nobody needs."""
    if engine is None or not engine.images.num_rows:
        return
    engine.images.clear()
    if not engine.has_work:
        assert isinstance(executor, SeeingExecutor), "who tells of rows of images holds them"
        executor.forget_images()


def give_up(engine: Stepper) -> StepOutputs:
    """End every request; return their last outputs, when others can read its blocks."""
    ended = engine.abort_all()
    engine.keeper.hand_over()
    return engine.outputs([*ended])


def _is_cache_awake(status: EngineStatus) -> bool:
    return KV_CACHE not in status.sleeping_tags
