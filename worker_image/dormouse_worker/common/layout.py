"""Where a rank stands in its group (pure): which shard of which layers it computes.

Ranks of one stage lie side by side, stages behind each other: rank = stage × tensor + tensor rank. A pod is a stage.

    tensor=2, pipeline=2      stage 0: ranks 0, 1      stage 1: ranks 2, 3
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """One rank's place among `tensor` × `pipeline` ranks. Raises ValueError for a place that is not there."""

    tensor: int = 1  # ranks that share every layer
    pipeline: int = 1  # stages that share the layers
    rank: int = 0  # in [0, world_size)

    def __post_init__(self) -> None:
        if self.tensor < 1 or self.pipeline < 1:
            raise ValueError(f"tensor is {self.tensor} and pipeline {self.pipeline}; each must be at least 1")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank is {self.rank}; a group of {self.world_size} has 0 to {self.world_size - 1}")

    @property
    def world_size(self) -> int:
        """Return how many ranks the group has."""
        return self.tensor * self.pipeline

    @property
    def tensor_rank(self) -> int:
        """Return which shard of its layers the rank computes."""
        return self.rank % self.tensor

    @property
    def stage(self) -> int:
        """Return which of the stages the rank belongs to; also its pod's ordinal."""
        return self.rank // self.tensor

    @property
    def is_first_stage(self) -> bool:
        """Return whether the rank embeds tokens."""
        return self.stage == 0

    @property
    def is_last_stage(self) -> bool:
        """Return whether the rank computes logits."""
        return self.stage == self.pipeline - 1

    @property
    def samples(self) -> bool:
        """Return whether the group's tokens come from this rank."""
        return self.is_last_stage and self.tensor_rank == 0
