"""What Linux says of the processors: how they multiply bfloat16. Imports no torch."""

from __future__ import annotations

from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
_TILES = "amx_bf16"
_HAVE_BFLOAT16 = frozenset({"avx512_bf16", _TILES, "bf16"})  # the last is ARM's


def multiply_bfloat16(cpuinfo: Path = CPUINFO) -> bool:
    """Return whether they do themselves; True where nobody tells."""
    said = _words(cpuinfo)
    return said is None or not _HAVE_BFLOAT16.isdisjoint(said)


def multiply_tiles(cpuinfo: Path = CPUINFO) -> bool:
    """Return whether they multiply whole tiles of it at once; False where nobody tells."""
    return _TILES in (_words(cpuinfo) or ())


def _words(cpuinfo: Path) -> frozenset[str] | None:
    try:
        return frozenset(cpuinfo.read_text(errors="replace").split())
    except OSError:
        return None
