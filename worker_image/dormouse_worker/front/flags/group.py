"""The flags of a group of ranks: how many there are, which pod this is, and where the group meets."""

from __future__ import annotations

import argparse

from dormouse_worker.common.group import GroupPlace
from dormouse_worker.front.flags import flag_types
from dormouse_worker.front.flags.model import add_knobs

LAST_PORT = 65535


def add_group_flags(group: argparse._ArgumentGroup) -> None:
    """Add them; `settings` reads them."""
    add, default = group.add_argument, GroupPlace()
    add_knobs(group, "tensor_parallel_size", "pipeline_parallel_size")
    add(
        "--node-rank",
        default=default.node_rank,
        type=flag_types.integer(0),
        metavar="N",
        help="which stage this pod is; 0 leads the group and serves, the others follow it (default 0)",
    )
    add("--master-addr", default=default.master_addr, metavar="HOST", help="name or address of the leading pod")
    add(
        "--master-port",
        default=default.master_port,
        type=flag_types.port,
        help="of torch.distributed in the leading pod; the next one is for the ranks' orders "
        "(default 0: any free one, where the group is one pod)",
    )
    add(
        "--rank-timeout",
        default=default.rank_timeout_s,
        type=flag_types.engine_timeout,
        metavar="SECONDS",
        help="a rank that answers a batch later, or gives no sign of life for so long, ends its group; below "
        f"--engine-timeout (default {default.rank_timeout_s:g})",
    )
    add(
        "--group-start-timeout",
        default=default.start_timeout_s,
        type=flag_types.positive_seconds,
        metavar="SECONDS",
        help=f"how long the ranks of a group wait for each other (default {default.start_timeout_s:g})",
    )


def check_group_flags(parser: argparse.ArgumentParser, flags: argparse.Namespace) -> None:
    """End like any bad flag does where flags of a group contradict each other."""
    stages = flags.pipeline_parallel_size
    if flags.node_rank >= stages:
        parser.error(
            f"argument --node-rank: {flags.node_rank} is no stage; allowed: 0 to {stages - 1}"
            f" (--pipeline-parallel-size {stages})"
        )
    if stages > 1 and not flags.master_addr:
        parser.error(f"argument --master-addr: needed, for --pipeline-parallel-size is {stages}")
    if stages > 1 and not 0 < flags.master_port < LAST_PORT:
        parser.error(
            f"argument --master-port: {flags.master_port} is not known to other pods; allowed: 1 to {LAST_PORT - 1},"
            f" for --pipeline-parallel-size is {stages}"
        )
    if stages * flags.tensor_parallel_size > 1 and flags.rank_timeout >= flags.engine_timeout:
        parser.error(
            f"argument --rank-timeout: {flags.rank_timeout:g} is not below --engine-timeout, {flags.engine_timeout:g}"
        )


def place_of_flags(flags: argparse.Namespace) -> GroupPlace:
    """Return this pod's place."""
    return GroupPlace(
        node_rank=flags.node_rank,
        num_nodes=flags.pipeline_parallel_size,
        master_addr=flags.master_addr,
        master_port=flags.master_port,
        rank_timeout_s=flags.rank_timeout,
        start_timeout_s=flags.group_start_timeout,
    )
