"""What a rank exchanges with the others of its group: sums and parts within a stage, hidden states between stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dormouse_worker.common.layout import Layout

if TYPE_CHECKING:
    import torch


class Communicator(Protocol):
    """One rank's line to its group. All ranks concerned must call alike, in one order.

    Every method raises RankLost if another rank ended, or did not call within the time that was agreed on at the start;
    only `close` may follow then.
    """

    @property
    def layout(self) -> Layout:
        """Return where this rank stands."""

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum over the ranks of this stage, the same bits on each; the tensor may be overwritten."""

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what the ranks of this stage bring, side by side along the last dimension; all have one shape."""

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """Return what the ranks of this stage bring, [..., C] each, side by side, [..., T · C]; on the first one alone.

        What the others get is nothing to compute with. It holds until the next call.
        """

    def send(self, hidden: torch.Tensor) -> None:
        """Give this to the next stage; may return before it is there. The tensor must stay as it is."""

    def receive(self, into: torch.Tensor) -> torch.Tensor:
        """Fill this with what the stage before sent, of the same shape and type, and return it."""

    def agree(self, *, is_ready: bool) -> list[int]:
        """Wait for every rank of the group, also for one that still loads; return those that are not ready."""

    def barrier(self) -> None:
        """Return when every rank of the group has come here."""

    def close(self) -> None:
        """Hang up, also after an error, and a second time. Raises nothing."""


class Alone:
    """Implements `Communicator` for one rank, and for one that shall not wait for the others.

    With a larger layout it answers as if they all brought what this one brings, and zeros came from the stage before:
    the shapes are right, the numbers are not. That is enough to see what a model stores and how much memory it takes.
    """

    def __init__(self, layout: Layout | None = None) -> None:
        self.layout = layout or Layout()

    def __repr__(self) -> str:
        return f"Alone({self.layout})"

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Communicator`."""
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `Communicator`."""
        if self.layout.tensor == 1:
            return tensor
        import torch

        return torch.cat([tensor] * self.layout.tensor, -1)

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Communicator`."""
        return self.all_gather(rows)

    def send(self, hidden: torch.Tensor) -> None:
        """See `Communicator`."""

    def receive(self, into: torch.Tensor) -> torch.Tensor:
        """See `Communicator`."""
        return into.zero_()

    def agree(self, *, is_ready: bool) -> list[int]:
        """See `Communicator`."""
        return [] if is_ready else [self.layout.rank]

    def barrier(self) -> None:
        """See `Communicator`."""

    def close(self) -> None:
        """See `Communicator`."""


ALONE = Alone()
