"""What the values of flags may be. Each raises ArgumentTypeError naming the value and what is allowed."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from pathlib import Path

from dormouse_api.hub_uri import SCHEME, parse_hub_uri
from dormouse_worker.common.adapters import NAME
from dormouse_worker.common.kv_events import KvEventsConfig, read_config
from dormouse_worker.engine.validation import QUALIFIED_NAME

_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)(Ki|Mi|Gi|Ti|)")
_FACTORS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
MIN_ENGINE_TIMEOUT_S = 5.0  # several heartbeats: a shorter limit would end idle engines over and over


def size_in_bytes(text: str) -> int:
    """Return a size. Raises ArgumentTypeError naming the value and the form."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no size; write at most 18 digits, with Ki, Mi, Gi or Ti or for bytes alone"
        )
    return int(float(match[1]) * _FACTORS[match[2]])


def integer(least: float | None, most: float | None = None) -> Callable[[str], int]:
    """Return a parser of integers within bounds; None = unbounded."""
    low, high = -math.inf if least is None else least, math.inf if most is None else most
    bounds = f"of at least {low}" + (f" and at most {high}" if most is not None else "")

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d+", text) or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer {bounds}")
        return int(text)

    return parse


def sizes(most: int | None, largest: int) -> Callable[[str], tuple[int, ...]]:
    """Return a parser of at most so many sizes from 1 to the largest; it returns them ascending, each once."""

    def parse(text: str) -> tuple[int, ...]:
        parts = [part.strip() for part in text.split(",")]
        if not all(re.fullmatch(r"[1-9]\d{0,8}", part) for part in parts):
            raise argparse.ArgumentTypeError(f"{text!r} is no list of sizes; write numbers above 0 as in 1,2,4,8")
        parsed = tuple(sorted({int(part) for part in parts}))
        if parsed[-1] > largest:
            raise argparse.ArgumentTypeError(f"{text!r} has {parsed[-1]}; allowed: 1 to {largest}")
        if most is not None and len(parsed) > most:
            raise argparse.ArgumentTypeError(f"{text!r} has {len(parsed)} sizes; at most {most} are allowed")
        return parsed

    return parse


def port(text: str) -> int:
    """Return a port; 0 = any free one."""
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; allowed: 0 (any free one) to 65535")
    return int(text)


def seconds(text: str) -> float:
    """Return a time in seconds, at least 0."""
    value = _number(text)
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no time; allowed: seconds of at least 0")
    return value


def positive_seconds(text: str) -> float:
    """Return a time in seconds above 0."""
    value = _number(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no time; allowed: seconds above 0")
    return value


def engine_timeout(text: str) -> float:
    """Return a time in seconds, long enough that an idle engine is not taken for a stuck one."""
    value = _number(text)
    if not (math.isfinite(value) and value >= MIN_ENGINE_TIMEOUT_S):
        raise argparse.ArgumentTypeError(
            f"{text!r} is too short; allowed: seconds of at least {MIN_ENGINE_TIMEOUT_S:g}"
        )
    return value


def share(text: str) -> float:
    """Return a share above 0, at most 1."""
    value = _number(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share; allowed: above 0 and at most 1")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def name(text: str) -> str:
    """Return a name that can stand in logs and answers."""
    if not text or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!r} is no name; at least one printable character is needed")
    return text


def lora_module(text: str) -> tuple[str, str]:
    """Return an adapter's name, and the absolute path of its directory or what it is called on a hub."""
    adapter, _, path = text.partition("=")
    if not NAME.fullmatch(adapter) or not path:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no adapter; write NAME=PATH, the name of letters, digits and . _ : / -"
        )
    if not path.startswith(SCHEME):
        return adapter, str(Path(path).absolute())
    if parse_hub_uri(path) is None:
        raise argparse.ArgumentTypeError(f"{path!r} is no repository of a hub; write hf://ORG/NAME@REVISION")
    return adapter, path


def kv_events_config(text: str) -> KvEventsConfig:
    """Return vLLM's settings of KV events, from JSON."""
    try:
        return read_config(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def qualified_name(unset: str) -> Callable[[str], str]:
    """Return a parser of the name of a class in a module; `unset` passes too and stands for none of one's own."""

    def parse(text: str) -> str:
        if text != unset and not QUALIFIED_NAME.fullmatch(text):
            raise argparse.ArgumentTypeError(
                f"{text!r} names no class; write module and class, as in my_package.MyClass"
            )
        return text

    return parse


def directory(text: str) -> str:
    """Return a directory as an absolute path without links, or "" for none; it need not exist."""
    return str(Path(text).resolve()) if text else ""
