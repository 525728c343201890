"""The flags by which the front looks after its engine: how long it may take, how often, and whether, it may start."""

from __future__ import annotations

import argparse

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.foreign.vllm.options import check_vllm_settings
from dormouse_worker.front.flags import flag_types


def add_engine_care_flags(group: argparse._ArgumentGroup) -> None:
    """Add them; `settings` reads them."""
    add = group.add_argument
    add(
        "--engine-timeout",
        default=120.0,
        type=flag_types.engine_timeout,
        metavar="SECONDS",
        help="an engine silent for longer is stuck and restarted; above the longest forward pass (default 120)",
    )
    add(
        "--engine-load-timeout",
        default=1800.0,
        type=flag_types.positive_seconds,
        metavar="SECONDS",
        help="an engine that takes longer to start (load and profile) or to wake is restarted; above what the largest "
        "model needs from the slowest volume (default 1800)",
    )
    add(
        "--engine-command-timeout",
        default=300.0,
        type=flag_types.positive_seconds,
        metavar="SECONDS",
        help="an engine that takes longer for any other command, such as sleep, is restarted (default 300)",
    )
    add(
        "--max-engine-restarts",
        default=5,
        type=flag_types.integer(0),
        metavar="N",
        help="how often an engine that died is started again within the window, at once, then after 1, 2, 4 s and so "
        "on; "
        "then the worker ends with code 1 and whoever started it decides (default 5)",
    )
    add(
        "--engine-restart-window",
        default=600.0,
        type=flag_types.seconds,
        metavar="SECONDS",
        help="how long a restart counts (default 600)",
    )
    add(
        "--spare-engine",
        action="store_true",
        help="keep a second engine process that has imported its libraries, with neither model nor device, so that an "
        "engine that died or that STANDBY ended is back sooner; takes some 400 MiB of host memory",
    )


def add_runtime_flags(group: argparse._ArgumentGroup) -> None:
    """Add what other people's engines need; `settings` reads it."""
    group.add_argument(
        "--engine-python",
        default="",
        metavar="PATH",
        help="the Python in which the engine of --runtime vllm runs: one that has it installed (default: ours)",
    )


def check_runtime_flags(parser: argparse.ArgumentParser, flags: argparse.Namespace, engine: EngineSettings) -> None:
    """End like any bad flag does where another engine than ours would be asked for what it does not do."""
    if engine.runtime == "dormouse":
        return
    for name in ("spare_engine", "device_grants", "profiler_dir"):
        if getattr(flags, name):
            parser.error(f"argument --{name.replace('_', '-')}: not allowed with --runtime {engine.runtime}")
    try:
        check_vllm_settings(engine)
    except InvalidSettings as error:
        parser.error(f"argument --runtime: {error}")


def add_grant_flags(group: argparse._ArgumentGroup) -> None:
    """Add what makes a worker wait for a grant of its device; `settings` reads it."""
    group.add_argument(
        "--device-grants",
        action="store_true",
        help="share the device in turns: start in STANDBY, and start an engine only once GrantDevice allows it",
    )


def check_spare_flags(parser: argparse.ArgumentParser, flags: argparse.Namespace) -> None:
    """End like any bad flag does where ranks would be started anew whatever waits."""
    if flags.spare_engine and (num_ranks := flags.tensor_parallel_size * flags.pipeline_parallel_size) > 1:
        parser.error(f"argument --spare-engine: needs a single rank, not {num_ranks}: leave it out for groups")


def check_grant_flags(parser: argparse.ArgumentParser, flags: argparse.Namespace) -> None:
    """End like any bad flag does where nobody could grant, or what is granted would not be all that is used."""
    if flags.device_grants and flags.standalone:
        parser.error("argument --device-grants: not allowed with --standalone: nothing grants devices there")
    if flags.device_grants and flags.pipeline_parallel_size > 1:
        parser.error(
            f"argument --device-grants: needs --pipeline-parallel-size 1, not {flags.pipeline_parallel_size}: "
            "a grant is for the devices of one pod"
        )
