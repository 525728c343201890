"""What a command's exit code says. The one list: `dormouse --help` and docs/reference/cli.md show it."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Why a command ended."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NO_CLUSTER = 3
    NO_RIGHTS = 4
    NOT_FOUND = 5
    TIMED_OUT = 6
    FINDINGS = 7
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """Return what the code says, in words."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.DONE: "it is done",
    ExitCode.FAILED: "it failed; the last line says why",
    ExitCode.USAGE: "an option or argument is wrong",
    ExitCode.NO_CLUSTER: "no kubeconfig, a wrong one, or no answer from the API server",
    ExitCode.NO_RIGHTS: "a right is missing; the message names verb and resource",
    ExitCode.NOT_FOUND: "no such namespace, deployment or kind",
    ExitCode.TIMED_OUT: "--timeout passed before it was done; the change itself stays",
    ExitCode.FINDINGS: "doctor found a problem",
    ExitCode.INTERRUPTED: "Ctrl-C",
}


def listing() -> str:
    """Return the codes and their meanings, a line each."""
    return "\n\n".join(f"{code.value}: {code.meaning}" for code in ExitCode)
