"""Which adapter answers a call, and the wait for one that is on its way. Raises CallError."""

from __future__ import annotations

from dormouse_worker.common.ipc import State
from dormouse_worker.front.engine.adapter_board import ChosenModel
from dormouse_worker.front.served_model import Model
from dormouse_worker.front.worker import Worker


async def until_adapter_was_tried(worker: Worker, name: str, model: Model) -> None:
    """Wait while an adapter is on its way into an engine that serves: who asks for one has it loaded first."""
    board = worker.adapters
    if not (adapter := board.on_its_way(name, model.names)):
        return
    board.awaited[adapter] += 1
    try:
        await worker.changes.until(
            lambda: not board.on_its_way(name, model.names) or worker.board.state is not State.READY
        )
    finally:
        board.awaited[adapter] -= 1


def choose_adapter(worker: Worker, model: Model, name: str) -> ChosenModel:
    """Return which adapter a name means; none of the model's own names means one. Raises CallError."""
    return worker.adapters.choose(name, model.names)
