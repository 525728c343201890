"""Where a step with drafts may be cut, and how a worker is told to end there: what workers obey, without torch."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from dormouse_worker.engine.batch import Batch
from dormouse_worker.engine.drafts.model import ModelPace
from dormouse_worker.engine.drafts.pace import RowCosts
from dormouse_worker.executor.testing_drafts import EagerPace, FreeRows

FRAIL = ("--worker-cls", "tests.integration.frail_draft_worker.FrailDraftWorker")
FRAIL_HEAD = ("--worker-cls", "tests.integration.frail_head_worker.FrailHeadWorker")
DIE = "die"
PROPOSING, SCORED = PHASES = ("proposing", "scored")
WHOLE = "whole"  # the front ends, too
MANY = 4  # sequences of a step that may be the end: more than one loses drafts by it


def always_draft() -> None:
    """Let this process draft whatever a pass takes: on a busy machine drafts may look too dear, and nothing ends it."""
    ModelPace.choose = EagerPace.choose  # type: ignore[method-assign]
    RowCosts.of = FreeRows.of  # type: ignore[method-assign]


def may_end(batch: Batch) -> tuple[bool, bool]:
    """Return whether a step may be the end behind what is proposed in it, and behind what is scored in it."""
    has_many = len(batch.sequences) >= MANY
    asks = has_many and any(sequence.num_wanted for sequence in batch.sequences)
    return asks, has_many and any(sequence.draft_token_ids for sequence in batch.sequences)


def obey_behind(owner: Any, method: str, model: Path) -> None:
    """From now on, obey behind what a drafter's method proposes: it lies among the sequences' tokens then."""
    if method in vars(owner):
        return
    propose = getattr(owner, method)

    def propose_and_obey(*arguments: Any) -> Any:
        proposed = propose(*arguments)
        obey(model, PROPOSING)
        return proposed

    setattr(owner, method, propose_and_obey)


def obey(model: Path, phase: str) -> None:
    """End here, once, if a file beside the model says so."""
    order = model / DIE
    if not order.exists() or phase not in (wanted := order.read_text().split()):
        return
    order.unlink()
    if WHOLE in wanted:
        os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
