"""What operator and gateways have to agree on about a canary: which try of it they speak of. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

# What says how many workers there are and when: others than the user write it, and it changes nothing of the model.
_NOT_TRIED = frozenset({"replicas", "lifecycle", "scaling"})
ABORTED = "Aborted"  # status.canary.state


def try_of(spec: Mapping[str, Any]) -> str:
    """Return the name of what is tried: another spec is another try, but for how many workers there are and when."""
    tried = {name: value for name, value in spec.items() if name not in _NOT_TRIED}
    return hashlib.sha256(json.dumps(tried, sort_keys=True).encode()).hexdigest()[:16]
