"""What the front and its bounded processes say to each other, and how such a process bounds itself."""

from __future__ import annotations

import json
import math
import resource
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

LENGTH = struct.Struct(">I")
MAX_REFUSAL_CHARS = 2000  # a template's own words can be as long as it likes
TEXT, REFUSED = "text", "refused"  # the fields of an answer; one of them is there


def encode(message: Mapping[str, Any]) -> bytes:
    """Return one message, ready to be written."""
    raw = json.dumps(message).encode()
    return LENGTH.pack(len(raw)) + raw


def read(source: BinaryIO) -> dict[str, Any] | None:
    """Return the next message, None when the front is gone."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    message: dict[str, Any] = json.loads(source.read(LENGTH.unpack(head)[0]))
    return message


def limit_memory(num_bytes: int, max_file_bytes: int = 0) -> None:
    """Allow so much more than there is now, files of so many bytes, and no picture of the memory when it ends."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + num_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_time(seconds: float) -> None:
    """Let the system end this process after so many more seconds of a processor, in whole ones."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time() + seconds) + 1, hard))


def answer_orders(
    source: BinaryIO, sink: BinaryIO, answer: Callable[[dict[str, Any]], Mapping[str, Any]], *, seconds: float
) -> None:
    """Say that the process is ready, then answer until the front is gone, for so many seconds of a processor each."""
    sink.write(encode({TEXT: ""}))
    while True:
        sink.flush()
        if (order := read(source)) is None:
            return
        limit_time(seconds)
        sink.write(encode(answer(order)))
