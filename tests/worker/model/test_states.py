"""States of a pass that a head reads: of all rows, the same from our decoder and from transformers' modules."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.model.states import KeptStates, find_layers, overheard


class Layer(nn.Module):
    """Adds one; gives a tensor, or a tuple as older layers do."""

    def __init__(self, *, is_older):
        super().__init__()
        self._is_older = is_older

    def forward(self, hidden_states):
        return (hidden_states + 1, None) if self._is_older else hidden_states + 1


class Model(nn.Module):
    """As transformers' models are: two layers, and a norm that doubles."""

    def __init__(self, *, is_older, by_name):
        super().__init__()
        self.layers = nn.ModuleList([Layer(is_older=is_older) for _ in range(2)])
        self._by_name = by_name

    def forward(self, hidden):
        for layer in self.layers:
            out = layer(hidden_states=hidden) if self._by_name else layer(hidden)
            hidden = out[0] if isinstance(out, tuple) else out
        return types.SimpleNamespace(last_hidden_state=2 * hidden)


class Causal(nn.Module):
    """The model under its head."""

    def __init__(self, num_layers=2, **kind):
        super().__init__()
        self.model = Model(**kind)
        text = types.SimpleNamespace(num_hidden_layers=num_layers)
        self.config = types.SimpleNamespace(get_text_config=lambda: text)

    @property
    def base_model(self):
        return self.model


@pytest.mark.parametrize("kind", [{"is_older": False, "by_name": True}, {"is_older": True, "by_name": False}])
@pytest.mark.parametrize(("depths", "found"), [((), [8.0]), ((0, 2), [2.0, 4.0]), ((2, 1), [4.0, 3.0])])
def test_what_is_heard_is_what_the_head_asked_for_in_its_order(kind, depths, found):
    module, states = Causal(**kind), KeptStates(1, depths)
    with overheard(module, states):
        module.model(torch.full((1, 3, 1), 2.0))
    assert states.rows.tolist() == [found] * 3
    assert repr(states) == f"KeptStates((3, {len(found)}), behind {depths or 'all'} layers)"
    module.model(torch.zeros(1, 5, 1))
    assert len(states.rows) == 3, "nobody listens any more"


def test_layers_that_are_no_list_are_named():
    with pytest.raises(InvalidSettings, match=r"Causal has no list of 3 layers, whose states heads of EAGLE's third"):
        find_layers(Causal(num_layers=3, is_older=False, by_name=True))
