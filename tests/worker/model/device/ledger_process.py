"""A process on a shared device that obeys lines: `take N`, `give N`, `promise N`, `churn SEED`, `die WHEN`.

It answers each with a line: `ok`, or what was refused. `churn` takes and gives for ever and says `.` after each step.
`die` ends it by SIGKILL in the next step, before or after the books are written.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

from dormouse_worker.model.device.driver import DeviceOutOfMemory
from dormouse_worker.model.device.ledger_file import DeviceShare

MIB = 1 << 20


def main() -> None:
    """Obey until the input ends; what is held stays in the books, as if this process were killed."""
    folder, who, context, budget = sys.argv[1:]
    share = DeviceShare(Path(folder), who, context_bytes=int(context), budget_bytes=int(budget))
    print("ok", flush=True)
    promises = ExitStack()
    for line in sys.stdin:
        verb, value = line.split()
        try:
            obey(share, verb, value, promises)
            print("ok", flush=True)
        except DeviceOutOfMemory as error:
            print(f"{error.missing_bytes} missing", flush=True)


def obey(share: DeviceShare, verb: str, value: str, promises: ExitStack) -> None:
    if verb == "take":
        share.take(int(value))
    elif verb == "give":
        share.give(int(value))
    elif verb == "promise":
        promises.enter_context(share.promised(int(value)))
    elif verb == "churn":
        churn(share, random.Random(value))
    else:
        die_at_next_write(before=value == "before")


def churn(share: DeviceShare, draw: random.Random) -> None:
    held = 0
    while True:
        num_bytes = draw.randrange(1, 64) * MIB
        try:
            if held and draw.random() < 0.5:
                share.give(held)
                held = 0
            elif draw.random() < 0.3:
                with share.promised(num_bytes):
                    share.take(num_bytes)
                held += num_bytes
            else:
                share.take(num_bytes)
                held += num_bytes
        except DeviceOutOfMemory:
            pass
        os.write(1, b".")


def die_at_next_write(*, before: bool) -> None:
    write = os.pwrite

    def dying(*arguments: int) -> int:
        if not before:
            write(*arguments)  # type: ignore[arg-type]
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("killed")

    os.pwrite = dying  # type: ignore[assignment]


if __name__ == "__main__":
    main()
