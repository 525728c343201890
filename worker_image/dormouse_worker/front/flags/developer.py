"""The flags for developers: code of one's own (see examples/extend), and profiles."""

from __future__ import annotations

import argparse

from dormouse_worker.front.flags import flag_types
from dormouse_worker.front.flags.model import add_knobs


def add_developer_flags(group: argparse._ArgumentGroup) -> None:
    """Add them to the command line."""
    add_knobs(group, "attention_backend", type=flag_types.name)
    add_knobs(group, "engine_runtime")
    add_knobs(group, "worker_cls", type=flag_types.qualified_name(unset="auto"))
    add_knobs(group, "worker_extension_cls", type=flag_types.qualified_name(unset=""))
    group.add_argument(
        "--profiler-dir",
        default="",
        type=flag_types.directory,
        metavar="DIRECTORY",
        help="where StartProfile may write traces (default: none may be taken)",
    )
