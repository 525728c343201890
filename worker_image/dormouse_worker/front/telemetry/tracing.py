"""The seam between the front and tracing. Knows nothing of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dormouse_api.status import CallError
    from dormouse_api.tickets import MetadataPairs
    from dormouse_worker.front.requests.reply import Facts
    from dormouse_worker.front.requests.streams import OutputStream


class Generation(Protocol):
    """A Generate call that has begun."""

    @property
    def facts(self) -> Facts:
        """Return what is known from the beginning."""

    @property
    def streams(self) -> Sequence[OutputStream]:
        """Return its choices."""


class Traces(Protocol):
    """Who hears of Generate calls, once each."""

    def ended(
        self, metadata: MetadataPairs | None, arrival_s: float, generation: Generation | None, error: CallError | None
    ) -> None:
        """A call ended. Without a generation it was refused; without an error it is complete, or its caller left."""
        ...


class Untraced:
    """Where tracing is off."""

    def ended(
        self, metadata: MetadataPairs | None, arrival_s: float, generation: Generation | None, error: CallError | None
    ) -> None:
        """See `Traces`."""


UNTRACED = Untraced()
