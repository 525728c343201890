"""Requests on their way into the engine: taken, or answered with why not."""

from __future__ import annotations

from dormouse_worker.common.grammar import GrammarRefused
from dormouse_worker.common.ipc import Added, EngineStatus, State, StepOutputs
from dormouse_worker.engine.stepping import Stepper
from dormouse_worker.engine.validation import unknown_token


def take(message: Added, engine: Stepper | None, status: EngineStatus) -> StepOutputs | None:
    """Give the request to the engine; return the answer if it is not taken, None if it is."""
    if engine is None or status.state is not State.READY:
        why = f"the worker is {status.state} and takes no requests"
        return StepOutputs([], running=0, waiting=0, kv_cache_usage=0.0, failed={message.request_id: why})
    try:
        refusal = unknown_token(message, status.model.vocab_size if status.model else 0) or engine.add(message)
    except GrammarRefused as error:
        return engine.outputs([], refused={message.request_id: str(error)})
    return None if refusal is None else engine.outputs([], {message.request_id: refusal})
