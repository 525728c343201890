"""The flags for developers: code of one's own (see examples/extend), and profiles."""

from __future__ import annotations

import argparse

from dormouse_worker.front.flags import flag_types


def add_developer_flags(group: argparse._ArgumentGroup) -> None:
    """Add them to the command line."""
    add = group.add_argument
    add(
        "--attention-backend",
        default="auto",
        type=flag_types.name,
        metavar="NAME",
        help="native (kernels of ours for processors), sdpa (torch's operations, in all of the pass), or one of an "
        "installed package (entry point group dormouse.attention_backends); "
        "auto = the fastest that fits the device (default)",
    )
    add(
        "--worker-cls",
        default="auto",
        type=flag_types.qualified_name(unset="auto"),
        metavar="MODULE.CLASS",
        help="a worker class of your own instead of the device's (default auto = the device's)",
    )
    add(
        "--worker-extension-cls",
        default="",
        type=flag_types.qualified_name(unset=""),
        metavar="MODULE.CLASS",
        help="a class whose methods the worker gets in addition (default none)",
    )
    add(
        "--profiler-dir",
        default="",
        type=flag_types.directory,
        metavar="DIRECTORY",
        help="where StartProfile may write traces (default: none may be taken)",
    )
