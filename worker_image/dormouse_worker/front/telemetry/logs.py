"""How the worker writes its log: one line per event, key=value, to standard error. Never prompts or tokens."""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime

_PLAIN = re.compile(r"[\w.:/@+,;-]+")


class KeyValueFormatter(logging.Formatter):
    """Formats a record as `time=… level=… logger=… event=… key=value …`; values with spaces are JSON strings."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line; a traceback becomes one quoted value."""
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return " ".join(f"{key}={_value(value)}" for key, value in fields.items())


def set_up_logging(level: str) -> None:
    """Send everything of this process to standard error, from the level upwards."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _value(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
