"""Whether a model that has slept still says what it said."""

from __future__ import annotations

import logging

from dormouse_worker.common.errors import GroupBroken
from dormouse_worker.engine.executor import Executor

logger = logging.getLogger(__name__)


def complaint_of(executor: Executor) -> str:
    """Have the model repeat its golden output; return what is wrong with it, "" = nothing. Raises GroupBroken."""
    try:
        executor.verify()
    except GroupBroken:
        raise
    except Exception as error:
        logger.exception("the model cannot be verified")
        return f"{type(error).__name__}: {error}"
    return ""
