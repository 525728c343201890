"""Which layers share block tables."""

from dormouse_worker.model.layer_groups import LayerGroup, group_layers


def test_layers_of_one_kind_are_one_group():
    assert group_layers("aaa", [None] * 3) == (LayerGroup((0, 1, 2)),)
    assert group_layers("aaa", [8] * 3) == (LayerGroup((0, 1, 2), 8),)


def test_layers_that_differ_only_in_what_they_store_are_one_group():
    assert group_layers("ab", [None, None]) == (LayerGroup((0, 1)),)


def test_alternating_windows_are_two_groups():
    assert group_layers("aaaa", [8, None, 8, None]) == (LayerGroup((0, 2), 8), LayerGroup((1, 3), None))


def test_five_windows_to_one_full_layer_are_six_groups_of_equal_size():
    windows = ([8] * 5 + [None]) * 2
    groups = group_layers("a" * 12, windows)
    assert [len(group.layers) for group in groups] == [2] * 6
    assert sorted(layer for group in groups for layer in group.layers) == list(range(12))
    assert [group.window for group in groups] == [8] * 5 + [None]


def test_layers_that_could_not_share_a_block_stay_together_without_a_window():
    assert group_layers("ab", [8, None]) == (LayerGroup((0, 1)),)


def test_too_many_groups_stay_together_without_a_window():
    assert group_layers("a" * 13, [8] * 12 + [None]) == (LayerGroup(tuple(range(13))),)
