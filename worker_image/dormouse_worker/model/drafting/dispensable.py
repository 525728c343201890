"""The draft model's weights: memory that one can do without. Where they do not come back, nobody drafts."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dormouse_worker.model.sleep import SleepPart

logger = logging.getLogger(__name__)


class Dispensable:
    """Implements `SleepPart` over another one. What does not come back with a wake is lost until the next wake."""

    def __init__(self, part: SleepPart) -> None:
        self._part = part
        self.lost = ""  # why it is not there

    def __repr__(self) -> str:
        return f"Dispensable({self._part!r}{', lost' if self.lost else ''})"

    @property
    def tag(self) -> str:
        """See `SleepPart`."""
        return self._part.tag

    @property
    def is_asleep(self) -> bool:
        """See `SleepPart`. Nobody waits for what is lost."""
        return self._part.is_asleep and not self.lost

    @property
    def wake_bytes(self) -> int:
        """See `SleepPart`."""
        return self._part.wake_bytes

    def save(self, level: int) -> None:
        """See `SleepPart`."""
        self._part.save(level)

    def forget(self) -> None:
        """See `SleepPart`."""
        self._part.forget()

    def drop(self) -> int:
        """See `SleepPart`."""
        self.lost = ""
        return self._part.drop()

    def reserve(self) -> None:
        """See `SleepPart`. There is memory for it, or none wakes: all of them take the same."""
        self._part.reserve()

    def cancel(self) -> None:
        """See `SleepPart`."""
        self._part.cancel()

    def restore(self) -> None:
        """See `SleepPart`. Raises nothing."""
        self._try(self._part.restore)

    @property
    def is_arriving(self) -> bool:
        """See `SleepPart`."""
        return self._part.is_arriving

    def arrive(self) -> None:
        """See `SleepPart`. Raises nothing; what does not arrive is given back."""
        if not self.lost and not self._try(self._part.arrive):
            self._part.drop()

    def settle(self) -> None:
        """See `SleepPart`."""
        self._part.settle()

    def _try(self, step: Callable[[], None]) -> bool:
        try:
            step()
        except Exception as error:  # the files may be gone, others, or unreadable
            self.lost = f"{type(error).__name__}: {error}"
            logger.exception("no drafts until the next wake: the draft model does not come back")
            return False
        return True
