"""What a call to a worker may raise; gRPC's own exceptions stop in `workers`."""

from __future__ import annotations


class WorkerError(Exception):
    """A call to a worker did not succeed; the message is for users."""


class WorkerUnreachable(WorkerError):
    """No answer in time. It may start, be gone, or be cut off."""


class WorkerRefused(WorkerError):
    """The worker said no, for now or for these arguments; the message is its own."""


class NotLeading(Exception):
    """This operator may not act: another one holds the lease, or the last renewal is too long ago."""
