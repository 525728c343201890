"""Every layer is computed by one stage, and no other split has a cheaper dearest stage."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_worker.common.stage_split import ModelCosts, split_layers

costs = st.integers(0, 30)
models = st.builds(ModelCosts, st.lists(costs, min_size=1, max_size=8).map(tuple), costs, costs)


def loads_of(model: ModelCosts, stages: tuple[range, ...]) -> list[int]:
    loads = [sum(model.layers[layer] for layer in stage) for stage in stages]
    loads[0] += model.before
    loads[-1] += model.behind
    return loads


def least_possible(model: ModelCosts, num_stages: int) -> int:
    """Return the dearest stage's cost in the best of all splits."""
    num_layers = len(model.layers)
    splits = combinations(range(1, num_layers), num_stages - 1)
    return min(
        max(loads_of(model, tuple(range(*ends) for ends in pairwise((0, *inner, num_layers))))) for inner in splits
    )


@given(model=models, data=st.data())
def test_every_layer_has_one_stage_every_stage_a_layer_and_no_split_is_faster(model: ModelCosts, data) -> None:
    num_stages = data.draw(st.integers(1, len(model.layers)))
    stages = split_layers(model, num_stages)
    assert len(stages) == num_stages
    assert [layer for stage in stages for layer in stage] == list(range(len(model.layers)))
    assert all(stages)
    assert max(loads_of(model, stages)) == least_possible(model, num_stages)


@given(num_layers=st.integers(1, 80), num_stages=st.integers(1, 8))
def test_equal_layers_are_shared_evenly_the_first_stages_have_what_is_left_over(
    num_layers: int, num_stages: int
) -> None:
    num_stages = min(num_stages, num_layers)
    sizes = list(map(len, split_layers(ModelCosts((1,) * num_layers), num_stages)))
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("model", "num_stages", "sizes"),
    [
        (ModelCosts((3,) * 24, behind=27), 2, [17, 7]),  # a head worth nine layers
        (ModelCosts((3,) * 24, behind=27), 4, [8, 8, 7, 1]),
        (ModelCosts((1,) * 24, before=4), 2, [10, 14]),
        (ModelCosts((1,) * 4, behind=100), 2, [3, 1]),  # a layer is the least
        (ModelCosts((1,) * 5, behind=100), 3, [2, 2, 1]),  # evenly where the dearest stage leaves a choice
        (ModelCosts((9, 1, 1, 1)), 2, [1, 3]),  # layers of different kinds
        (ModelCosts((0, 0, 0)), 3, [1, 1, 1]),
        (ModelCosts((7,)), 1, [1]),
    ],
    ids=repr,
)
def test_what_lies_around_the_layers_counts(model: ModelCosts, num_stages: int, sizes: list[int]) -> None:
    assert list(map(len, split_layers(model, num_stages))) == sizes


@pytest.mark.parametrize("num_stages", [0, -1, 4])
def test_numbers_of_stages_that_can_not_be_are_refused(num_stages: int) -> None:
    with pytest.raises(ValueError, match=f"^{num_stages} stages; 3 layers are enough for 1 to 3$"):
        split_layers(ModelCosts((1, 1, 1)), num_stages)


@pytest.mark.parametrize("model", [{"layers": (1, -2)}, {"layers": (1,), "before": -2}, {"layers": (), "behind": -2}])
def test_costs_below_nothing_are_refused(model) -> None:
    with pytest.raises(ValueError, match=r"^a cost is -2; none can be below 0$"):
        ModelCosts(**model)
