"""Reads what a watch of kubectl's prints, line by line, and knows nothing of what it says."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

from tools.kubectl import Cluster


@contextmanager
def watched(cluster: Cluster, *what: str, shown: str, note: Callable[[str], None]) -> Iterator[None]:
    """Have `note` take each line, in a thread of its own, of `kubectl get WHAT -w` with this jsonpath."""
    command = cluster.kubectl_command("get", *what, "-w", "-o", f"jsonpath={shown}")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=cluster.env)

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                note(line.strip())

    reading = Thread(target=read, daemon=True)
    reading.start()
    try:
        yield
    finally:
        process.terminate()
        process.wait()
        reading.join()
