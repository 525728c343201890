"""What programs that talk to models by themselves send: the shape of each request, with words of our own in it.

A recording is headers and requests; a request may be like a former one of its file, with `only` some of its fields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "recorded"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request."""

    what: str
    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]

    def __str__(self) -> str:
        """Return the test's name for it."""
        return self.what


def requests_of(program: str) -> Sequence[Recorded]:
    """Return a program's requests, in the order in which it sends them."""
    said = json.loads((_FOLDER / f"{program}.json").read_text("utf-8"))
    bodies: dict[str, dict[str, Any]] = {}
    for request in said["requests"]:
        former = bodies.get(request.get("like"), {})
        kept = {name: value for name, value in former.items() if name in request.get("only", former)}
        bodies[request["what"]] = kept | request["body"]
    return [Recorded(each["what"], each["path"], said["headers"], bodies[each["what"]]) for each in said["requests"]]
