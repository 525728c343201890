"""What an adapter of a hub is called: hf://ORG/NAME@REVISION. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

SCHEME = "hf://"
DEFAULT_REVISION = "main"
_WORD = r"[A-Za-z0-9][-A-Za-z0-9._]{0,95}"
_URI = re.compile(rf"hf://({_WORD}/{_WORD})(?:@([A-Za-z0-9](?:[-A-Za-z0-9._/]{{0,126}}[A-Za-z0-9])?))?")


class HubRepo(NamedTuple):
    """A repository at a branch, tag or commit."""

    repo: str  # ORG/NAME
    revision: str


def parse_hub_uri(uri: str) -> HubRepo | None:
    """Return what a URI names; None = it is none of a hub's, or no good one."""
    found = _URI.fullmatch(uri)
    return HubRepo(found[1], found[2] or DEFAULT_REVISION) if found and ".." not in uri else None
