"""Who always drafts, whatever it takes: so that a test does not depend on the machine."""

from __future__ import annotations

from dormouse_worker.engine.drafts.model import ModelPace
from dormouse_worker.engine.drafts.pace import EqualRows, RowCosts
from dormouse_worker.engine.engine import Engine


class FreeRows(RowCosts):
    """A row of a draft costs nothing, whatever is measured."""

    def of(self, num_seqs: int) -> EqualRows:
        """See `RowCosts`."""
        del num_seqs
        return EqualRows(0.0)


class EagerPace(ModelPace):
    """Always asks for all that there is room for, whatever a pass takes."""

    def choose(self, chance: float, num_seqs: int, num_unread: int, most: int) -> int:
        """See `ModelPace`."""
        del chance, num_seqs, num_unread
        return most


def draft_always(engine: Engine) -> None:
    """From now on let an engine score and ask for all drafts that it has room for."""
    speculation = engine._scheduler.speculation  # noqa: SLF001  # the kit looks inside
    assert speculation is not None, "it drafts"
    speculation.costs = FreeRows(speculation._max_tokens)  # noqa: SLF001
    if speculation.model is not None:
        speculation.model = EagerPace(speculation.costs)
