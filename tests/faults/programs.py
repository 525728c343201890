"""Child processes of the fault tests: each with its log, and each ends with the tests, whatever ends those."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


class Program:
    """One child process. The kernel kills it when the thread that started it ends (setpriv --pdeathsig)."""

    def __init__(self, argv: Sequence[str | Path], *, log: Path, env: Mapping[str, str] | None = None) -> None:
        """Start it, with its output added to the log."""
        self.name = Path(argv[0]).name
        self.log = log
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *map(str, argv)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=None if env is None else dict(env),
            )

    def __repr__(self) -> str:
        """Show the pid and how it ended."""
        return f"Program({self.name}, pid {self.pid}, exit code {self._child.poll()})"

    @property
    def pid(self) -> int:
        """Return the pid; setpriv became the program itself."""
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """Return the exit code (negative: the signal), None while it runs."""
        return self._child.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; none is sent to a process that ended."""
        self._child.send_signal(number)

    def end(self) -> None:
        """End it at once; nothing that it would tidy up outlives the tests."""
        if self._child.poll() is None:
            self.signal(signal.SIGKILL)
        self._child.wait()

    def tail(self, num_lines: int = 25) -> str:
        """Return the log's last lines."""
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-num_lines:])


def clean_environment(**values: object) -> dict[str, str]:
    """Return our environment without what would lead a client to another cluster or through a proxy, and the values."""
    odd = ("KUBE", "DORMOUSE_", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(odd)}
    return kept | {name: str(value) for name, value in values.items()}
