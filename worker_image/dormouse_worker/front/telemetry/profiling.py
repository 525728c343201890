"""Where a profile may be written: only under the directory that the worker's owner named."""

from __future__ import annotations

from pathlib import Path

import grpc

from dormouse_api.status import CallError


def trace_directory(profiler_dir: str, wanted: str) -> str:
    """Return the absolute directory for a trace; `wanted` is relative to `profiler_dir`, or lies under it.

    Links are followed first, so that none leads out. Raises CallError FAILED_PRECONDITION if the worker takes no
    profiles, INVALID_ARGUMENT for a directory outside.
    """
    if not profiler_dir:
        raise CallError(
            grpc.StatusCode.FAILED_PRECONDITION,
            "this worker takes no profiles; start it with --profiler-dir, the directory for their traces",
        )
    root = Path(profiler_dir).resolve()
    try:
        directory = (root / wanted).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # too long, links in a circle, a zero byte
        raise _refusal(wanted, f"is no path: {error}") from error
    if not directory.is_relative_to(root):
        raise _refusal(wanted, f"lies outside {root} (--profiler-dir)")
    return str(directory)


def _refusal(wanted: str, why: str) -> CallError:
    return CallError(grpc.StatusCode.INVALID_ARGUMENT, f"directory is {wanted!r}, which {why}")
