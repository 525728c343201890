"""How the pods of a group find each other: what every one of them is told, and where the ranks meet. Pure.

A group has a *leader*, the pod with node rank 0, and a *follower* for each further stage. Two ports of the leader's:
`master_port` for torch.distributed's store, which rank 0 opens, and the next one for the messages of `executor`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

GROUP_ID_VARIABLE = "DORMOUSE_GROUP_ID"
LOOPBACK = "127.0.0.1"
LEADER_FIRST_S = 2.0  # a period of the signs of life, and one of the looks for them


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """One pod's place in its group."""

    node_rank: int = 0  # the pod's ordinal = its stage; 0 leads
    num_nodes: int = 1  # pods of the group = stages
    master_addr: str = ""  # the leader's name or address; "" = the group is one pod
    master_port: int = 0  # 0 = any free one: the group is one pod
    rank_timeout_s: float = 60.0  # a rank that answers a batch later, or gives no sign of life for so long, hangs
    start_timeout_s: float = 300.0  # how long the leader waits for every rank to come

    @property
    def leads(self) -> bool:
        """Return whether the scheduler is here."""
        return self.node_rank == 0

    @property
    def message_port(self) -> int:
        """Return where the leader awaits the ranks of other pods."""
        return self.master_port + 1

    @property
    def patience_s(self) -> float:
        """Return how long anybody but the leader bears a silent rank: the leader, which can name it, comes first."""
        return self.rank_timeout_s + LEADER_FIRST_S

    def arguments(self) -> list[str]:
        """Return the command line that tells an engine process of this; `add_group_arguments`."""
        return [
            *("--master-addr", self.master_addr, "--master-port", str(self.master_port)),
            *("--rank-timeout", str(self.rank_timeout_s), "--group-start-timeout", str(self.start_timeout_s)),
        ]


def identity_of(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return (group id, pod name) as the operator has written them into the environment; "" where it has not."""
    return environ.get(GROUP_ID_VARIABLE, ""), environ.get("DORMOUSE_POD_NAME") or environ.get("HOSTNAME", "")


def add_group_arguments(parser: argparse.ArgumentParser) -> None:
    """Let an engine process read what `GroupPlace.arguments` wrote."""
    default = GroupPlace()
    parser.add_argument("--master-addr", default=default.master_addr)
    parser.add_argument("--master-port", type=int, default=default.master_port)
    parser.add_argument("--rank-timeout", type=float, default=default.rank_timeout_s)
    parser.add_argument("--group-start-timeout", type=float, default=default.start_timeout_s)


def place_of(flags: argparse.Namespace) -> GroupPlace:
    """Return a leader's place from its engine's command line."""
    return GroupPlace(
        master_addr=flags.master_addr,
        master_port=flags.master_port,
        rank_timeout_s=flags.rank_timeout,
        start_timeout_s=flags.group_start_timeout,
    )
