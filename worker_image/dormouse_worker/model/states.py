"""What a head reads of its model's passes in torch: states of all rows, from whichever path computed them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.model.scratch import Scratch


class KeptStates:
    """Owns the states of the last pass: what the output matrix is multiplied with, or what comes of several layers."""

    def __init__(self, size: int, depths: Sequence[int] = ()) -> None:
        """Keep what comes of so many layers, each of `depths`, side by side; none = what the output matrix reads.

        `size` is that of one layer's, H.
        """
        self._size = size
        self._depths = tuple(depths)
        self._passed: dict[int, torch.Tensor] = {}
        self.rows = torch.empty(0, size)  # [T, H] of the last pass, or [T, depths · H]

    def __repr__(self) -> str:
        return f"KeptStates({tuple(self.rows.shape)}, behind {self._depths or 'all'} layers)"

    @property
    def depths(self) -> tuple[int, ...]:
        """Return behind how many layers; () = what the output matrix is multiplied with."""
        return self._depths

    def make_scratch(self) -> Scratch:
        """Return the scratch of kernels whose states shall be kept, too."""
        return Scratch(max(1, len(self._depths)) * self._size, keeps_all_states=True, depths=self._depths)

    def take(self, scratch: Scratch) -> None:
        """Keep what kernels left in their scratch; it is theirs again with the next pass."""
        self.rows = torch.from_numpy(scratch.states)

    def pass_by(self, depth: int, hidden: torch.Tensor) -> None:
        """So many layers of a pass made these rows [T, H]."""
        if depth in self._depths:
            self._passed[depth] = hidden

    def end(self, normed: torch.Tensor) -> None:
        """The pass is over; these rows [T, H] are what the output matrix is multiplied with."""
        parts = [self._passed[depth] for depth in self._depths] or [normed]
        self.rows = torch.cat(parts, dim=-1)
        self._passed.clear()


@contextmanager
def overheard(module: Any, states: KeptStates) -> Iterator[None]:
    """Keep the states of a pass of transformers' module inside the block."""
    with ExitStack() as stack:
        layers = find_layers(module) if states.depths else nn.ModuleList()
        for depth in states.depths:
            if depth == 0:
                handle = layers[0].register_forward_pre_hook(partial(_note_input, states), with_kwargs=True)
            else:
                handle = layers[depth - 1].register_forward_hook(partial(_note_output, states, depth))
            stack.callback(handle.remove)
        stack.callback(module.base_model.register_forward_hook(partial(_note_end, states)).remove)
        yield


def find_layers(module: Any) -> nn.ModuleList:
    """Return the layers of transformers' module. Raises InvalidSettings where they are no list of as many as it has."""
    count = int(module.config.get_text_config().num_hidden_layers)
    for part in module.base_model.modules():
        if isinstance(part, nn.ModuleList) and len(part) == count:
            return part
    raise InvalidSettings(
        f"{type(module).__name__} has no list of {count} layers, whose states heads of EAGLE's third kind read; use a "
        "head of the first kind, draft, or suffix"
    )


def _note_input(states: KeptStates, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    states.pass_by(0, (args[0] if args else kwargs["hidden_states"])[0])


def _note_output(states: KeptStates, depth: int, _: nn.Module, __: tuple[Any, ...], output: Any) -> None:
    states.pass_by(depth, (output if isinstance(output, torch.Tensor) else output[0])[0])


def _note_end(states: KeptStates, _: nn.Module, __: tuple[Any, ...], output: Any) -> None:
    states.end(output.last_hidden_state[0])
