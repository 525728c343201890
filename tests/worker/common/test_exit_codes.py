"""Every way in which a group breaks has a code of its own, from which the front tells the reason."""

from dormouse_worker.common import exit_codes
from dormouse_worker.common.errors import GroupBroken
from dormouse_worker.front.engine.losses import REASONS


def test_every_kind_of_broken_group_has_a_code_of_its_own():
    kinds = [kind.__name__ for kind in GroupBroken.__subclasses__() if kind.__module__ == GroupBroken.__module__]
    assert sorted(exit_codes.GROUP_EXITS) == sorted([*kinds, "GroupBroken"])
    others = [code for name, code in vars(exit_codes).items() if name.startswith("EXIT_")]
    codes = {*others, *exit_codes.GROUP_EXITS.values()}
    assert len(codes) == len(others) + len(exit_codes.GROUP_EXITS) - 1, "all but the general one are their own"


def test_the_front_tells_the_kind():
    assert {REASONS[code] for code in exit_codes.GROUP_EXITS.values()} == set(exit_codes.GROUP_EXITS)
