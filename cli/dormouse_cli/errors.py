"""The one error that ends a command. Imports nothing heavy: every command's module needs it."""

from __future__ import annotations

from dormouse_cli.exit_codes import ExitCode


class CommandFailed(Exception):
    """The command cannot go on; the message is all that the user sees."""

    def __init__(self, message: str, *, code: ExitCode = ExitCode.FAILED) -> None:
        """Take what to say and what the process ends with."""
        super().__init__(message)
        self.code = code
