"""Errors of a worker that somebody outside can act on. The class name is the reason shown in conditions and answers."""

from __future__ import annotations


class WorkerError(Exception):
    """Base of all; the message names the culprit, the numbers and the knob to turn."""

    @property
    def reason(self) -> str:
        """Return the CamelCase reason."""
        return type(self).__name__


class ModelNotFound(WorkerError):
    """The model's directory does not exist."""


class ModelInvalid(WorkerError):
    """The directory is there, but what lies in it cannot be loaded."""


class ModelUnreadable(WorkerError):
    """The volume that the model lies on does not answer, or with an error of its own."""


class Damaged(WorkerError):
    """What the worker would compute with is not what it started with: only a restart helps."""


class ModelChanged(WorkerError):
    """What lies in the model's directory is no longer what was loaded from it; the former files would do."""


class WeightsDamaged(Damaged):
    """What lies in the device's memory is not what was loaded."""


class AdapterNotFound(WorkerError):
    """No adapter has this digest, or its directory does not exist."""


class AdapterInvalid(WorkerError):
    """An adapter's files are damaged, do not fit the base model, or ask for what is not computed here."""


class AdapterLimit(WorkerError):
    """There is no room for another adapter."""


class CustomCodeRefused(WorkerError):
    """The model brings Python code of its own (`auto_map`), which is never run."""


class PickleRefused(WorkerError):
    """The weights are pickles, which run code while they load."""


class InvalidSettings(WorkerError):
    """A setting contradicts the model or another setting."""


class InsufficientMemory(WorkerError):
    """Not a single block of KV cache fits beside the model."""


class MaxModelLenTooLarge(WorkerError):
    """The cache cannot hold one sequence of the longest allowed length."""


class StorageFull(WorkerError):
    """The disk or its quota has no room for what shall be written."""


class Unauthorized(WorkerError):
    """The hub does not let us read the repository: it is private or gated, and no token, or a wrong one, was sent."""


class NoSafetensors(WorkerError):
    """The repository holds no weights that can be loaded; pickles, which run code, are not."""


class Truncated(WorkerError):
    """What came from the hub is not the file that it announced."""


class HubUnreachable(WorkerError):
    """The hub gave no answer, or an error of its own; trying again may help."""


class WrongDevice(WorkerError):
    """The worker sees another device than the one that it is meant to use."""


class InvalidArgument(WorkerError):
    """A command carries a value outside its limits."""


class WrongState(WorkerError):
    """The command is not allowed now; the same command may succeed later."""


class ProfileNotWritten(WorkerError):
    """The trace of a profile could not be written to disk; what it recorded is lost."""


class GoldenTokensDiffer(Damaged):
    """After a wake the model did not repeat the tokens recorded at its first start."""


class LogitsNotFinite(Damaged):
    """The model says infinities, or no numbers at all, where probabilities should be."""


class GroupBroken(WorkerError):
    """The ranks of a group cannot go on together: a new group has to begin. The kinds follow; each names the rank."""


class RankMissing(GroupBroken):
    """A rank did not come in time, or not one that fits."""


class RankLost(GroupBroken):
    """A rank ended, or its connection did, or others did not hear of it in time."""


class RankHung(GroupBroken):
    """A rank gives no sign of life, or does not answer in time."""


class RanksDisagree(GroupBroken):
    """Ranks that must be alike are not: in what they are, or in what became of a command."""


class GroupPortTaken(GroupBroken):
    """The leader cannot listen where the ranks of its group look for it."""


class PeerFailed(WorkerError):
    """Another rank of the group could not do its part of a command; this one took its own back."""


class Internal(WorkerError):
    """An error that nobody foresaw; the log of the engine has the traceback."""
