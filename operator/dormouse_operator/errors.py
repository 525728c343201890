"""What a call to a worker or a gateway may raise; gRPC's own exceptions stop in `workers` and `gateways`."""

from __future__ import annotations


class WorkerError(Exception):
    """A call to a worker did not succeed; the message is for users."""


class WorkerUnreachable(WorkerError):
    """No answer in time. It may start, be gone, or be cut off."""


class WorkerRefused(WorkerError):
    """The worker said no, for now or for these arguments; the message is its own."""


class GatewayLost(Exception):
    """A gateway is not heard of, or none is found; the message says which and why."""


class NotLeading(Exception):
    """This operator may not act: another one holds the lease, or the last renewal is too long ago."""
