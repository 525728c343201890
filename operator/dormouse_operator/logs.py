"""How the operator logs: one line per record, key=value or JSON, with object, step and epoch where they are known."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal

LogFormat = Literal["text", "json"]

_object: ContextVar[str] = ContextVar("object", default="")
_step: ContextVar[str] = ContextVar("step", default="")


@contextmanager
def log_object(name: str) -> Iterator[None]:
    """Name the object that everything logged meanwhile is about."""
    token = _object.set(name)
    try:
        yield
    finally:
        _object.reset(token)


@contextmanager
def log_step(name: str) -> Iterator[None]:
    """Name the step of a pass that everything logged meanwhile is about."""
    token = _step.set(name)
    try:
        yield
    finally:
        _step.reset(token)


class FieldsFormatter(logging.Formatter):
    """Writes a record as fields. Never breaks a line: a traceback is a field too."""

    def __init__(self, style: LogFormat, *, epoch: Callable[[], int] = lambda: 0) -> None:
        """Take the style and whom to ask for the epoch (0 = none)."""
        super().__init__()
        self._log_format = style
        self._epoch = epoch

    def format(self, record: logging.LogRecord) -> str:
        """See Formatter."""
        fields: dict[str, str | int] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "object": _object.get(),
            "step": _step.get(),
            "epoch": self._epoch(),
            "error": self.formatException(record.exc_info) if record.exc_info else "",
        }
        filled = {name: value for name, value in fields.items() if value != "" and (name, value) != ("epoch", 0)}
        if self._log_format == "json":
            return json.dumps(filled, ensure_ascii=False)
        return " ".join(f"{name}={_quote(str(value))}" for name, value in filled.items())


def set_up(level: str, style: LogFormat, *, epoch: Callable[[], int] = lambda: 0) -> None:
    """Have everything logged to standard error in this style, from this level on."""
    handler = logging.StreamHandler()
    handler.setFormatter(FieldsFormatter(style, epoch=epoch))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("kopf").setLevel(logging.WARNING)


def _quote(text: str) -> str:
    """Return the text, in JSON's quotes where it would not be one word."""
    is_word = text and not any(char.isspace() or char in '"=\\' for char in text)
    return text if is_word else json.dumps(text, ensure_ascii=False)
