"""Where a directory lies that is no model of a deployment's own: in a claim, or in the worker's container."""

from __future__ import annotations

from dormouse_operator.parse.values import SpecError

_ALLOWED = "pvc://CLAIM/PATH and file:///PATH"
_MOST_CHARS = 512  # of what was said, in a message


def parse_uri(uri: str, field: str, *, root: str, plural: str) -> tuple[str, str]:
    """Return the claim, "" for none, and the directory in the container; claims are mounted below `root`."""
    said = f"{field} is {uri[:_MOST_CHARS]!r}"
    if ".." in uri.split("/"):
        raise SpecError(f"{said}; the path must not hold ..")
    if "\0" in uri:
        raise SpecError(f"{said}; the path must not hold a NUL")
    if uri.startswith("hf://"):
        raise SpecError(f"{said}; {plural} of a hub are not fetched: put them into a claim (pvc://)")
    if uri.startswith("file:///") and uri != "file:///":
        return "", uri.removeprefix("file://")
    claim, _, path = uri.removeprefix("pvc://").partition("/")
    if not uri.startswith("pvc://") or not claim:
        raise SpecError(f"{said}; allowed are {_ALLOWED}")
    return claim, "/".join(part for part in (root, claim, path) if part)
