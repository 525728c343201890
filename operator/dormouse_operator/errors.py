"""What a call to a worker or a gateway may raise; gRPC's own exceptions stop in `workers` and `gateways`."""

from __future__ import annotations

from collections.abc import Mapping


class WorkerError(Exception):
    """A call to a worker did not succeed; the message is for users."""


class WorkerUnreachable(WorkerError):
    """No answer in time. It may start, be gone, or be cut off."""


class WorkerRefused(WorkerError):
    """The worker said no, for now or for these arguments; the message is its own."""


class CredentialRefused(WorkerRefused):
    """The worker does not take us for its operator."""


class RequestCameIn(WorkerRefused):
    """A worker that was to fall asleep because nobody calls was called in the meantime."""


class GatewayLost(Exception):
    """A gateway is not heard of, or none is found; the message says which and why."""


class NotLeading(Exception):
    """This operator may not act: another one holds the lease, or the last renewal is too long ago."""


class GroupRefused(WorkerRefused):
    """Some of the workers that were to act as one refused."""

    def __init__(self, refusals: Mapping[str, str]) -> None:
        """Take the words of each, by pod name."""
        super().__init__("; ".join(f"pod {name}: {words}" for name, words in refusals.items()))
        self.refusals = dict(refusals)
