"""Which version this command line is, and how it compares with the cluster's parts."""

from __future__ import annotations

from importlib import metadata

UNKNOWN = "unknown"


def own_version() -> str:
    """Return this package's version, "unknown" where it runs uninstalled."""
    try:
        return metadata.version("dormouse")
    except metadata.PackageNotFoundError:
        return UNKNOWN


def difference(own: str, theirs: str) -> str:
    """Return in words how another part's version differs in what matters (major, minor), "" if it does not."""
    mine, other = _release(own), _release(theirs)
    if mine is None or other is None or mine == other:
        return ""
    return f"it is {'newer' if other > mine else 'older'} than this command line ({theirs}, {own})"


def _release(version: str) -> tuple[int, int] | None:
    parts = version.removeprefix("v").split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    return int(parts[0]), int(parts[1])
