"""What one API key's file says. Pure but for the one read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from dormouse_api.quotas import Quota

_FIELDS = ("sha256", "models", "requests_per_minute", "max_concurrent")
_DIGEST = re.compile("[0-9a-fA-F]{64}")


class BadKeyFile(Exception):
    """A key's file cannot be used; the message names the file, the field, the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key, of a file or of an InferenceKey. The digest is compared, never shown."""

    name: str
    digest: bytes  # SHA-256
    models: frozenset[str] | None = None  # None = all
    quota: Quota = field(default_factory=Quota)
    max_concurrent: int | None = None  # None = any number
    namespace: str = ""  # whose models an InferenceKey names; "" = of a file, which names those of all
    expires: datetime | None = None  # None = never
    weight: int = 1  # among keys that use one model

    def __repr__(self) -> str:
        """Show what the key may do."""
        models = "all" if self.models is None else sorted(self.models)
        return (
            f"ApiKey({self.name}, models={models}, {self.quota.requests_per_minute}/min, {self.max_concurrent} at once)"
        )


def read_key(path: Path) -> ApiKey:
    """Read a key's file. Raises BadKeyFile, OSError."""
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BadKeyFile(f"{path}: no JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadKeyFile(f"{path}: {type(content).__name__}; allowed is a JSON object with {', '.join(_FIELDS)}")
    return parse_key(path.name, content)


def parse_key(name: str, content: Mapping[str, Any]) -> ApiKey:
    """Return the key that a file of this name describes. Raises BadKeyFile."""
    for given in content:
        if given not in _FIELDS:
            raise BadKeyFile(f"{name}: {given!r} is no field; allowed are {', '.join(_FIELDS)}")
    digest = content.get("sha256")
    if not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
        raise BadKeyFile(f"{name}: sha256 is not there or no text of 64 hexadecimal digits")
    return ApiKey(
        name,
        bytes.fromhex(digest),
        _models(name, content.get("models")),
        Quota(_count(name, "requests_per_minute", content.get("requests_per_minute"))),
        _count(name, "max_concurrent", content.get("max_concurrent")),
    )


def _models(name: str, value: Any) -> frozenset[str] | None:
    if value is None:
        return None
    if not (isinstance(value, list) and all(isinstance(model, str) for model in value)):
        raise BadKeyFile(f"{name}: models is {value!r}; allowed is a list of names")
    return frozenset(value)


def _count(name: str, field: str, value: Any) -> int | None:
    if value is None:
        return None
    if not (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        raise BadKeyFile(f"{name}: {field} is {value!r}; allowed are whole numbers from 1")
    return value
