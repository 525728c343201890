"""The rows that follow from changes of hands, and from the books of the device."""

import msgspec
import pytest

from bench.switch import Switch, mark_rows, switch_rows
from dormouse_worker.model.device.ledger import Marks

SWITCH = Switch(copied_bytes=10**9, sleep_s=0.02, copy_s=0.05, verify_s=0.04, wake_s=0.1, peer_s=0.05)


@pytest.mark.parametrize(("copy_s", "holds"), [(0.05, True), (0.058, True), (0.06, False)])
def test_the_copy_is_judged_by_the_pair_in_the_middle(copy_s, holds):
    switches = [SWITCH, msgspec.structs.replace(SWITCH, copy_s=copy_s), msgspec.structs.replace(SWITCH, copy_s=1.0)]
    copy, *others = switch_rows(switches)
    assert (copy.ours, copy.peer, copy.holds) == (pytest.approx(1 / copy_s, rel=1e-3), 20.0, holds)
    assert [(row.ours, row.goal) for row in others] == [(20.0, None), (40.0, None), (100.0, None)]


@pytest.mark.parametrize(
    ("marks", "verdicts"),
    [
        (Marks(most_awake=1), [True, True]),
        (Marks(most_awake=2), [True, False]),
        (Marks(most_awake=1, over_size_bytes=1), [False, True]),
    ],
)
def test_the_books_have_to_be_clean(marks, verdicts):
    assert [row.holds for row in mark_rows(marks)] == verdicts
