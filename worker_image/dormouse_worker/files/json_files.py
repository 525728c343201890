"""Reads the JSON files of a model's directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dormouse_worker.common.errors import ModelInvalid

_MISSING = object()


def read_json(file: Path, missing: Any = None) -> Any:
    """Return what a file holds, `missing` if there is none. Raises ModelInvalid."""
    try:
        return json.loads(file.read_bytes())
    except FileNotFoundError:
        return missing
    except (OSError, ValueError, RecursionError) as error:
        raise ModelInvalid(f"{file}: not readable as JSON ({error}); copy the model again") from error


def read_object(file: Path) -> dict[str, Any]:
    """Return the object that a file holds, {} if the file is missing. Raises ModelInvalid on anything else."""
    return _as_object(file, read_json(file, {}))


def require_object(file: Path) -> dict[str, Any]:
    """Return the object that a file holds. Raises ModelInvalid on anything else."""
    value = read_json(file, _MISSING)
    if value is _MISSING:
        raise ModelInvalid(f"{file}: missing; copy the whole model directory")
    return _as_object(file, value)


def _as_object(file: Path, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ModelInvalid(f"{file}: holds {type(value).__name__}, a JSON object is needed")
    return value
