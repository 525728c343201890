"""Which levels workers claim, and what is told of those that they do not."""

from dormouse_operator.decide import sleep_levels
from dormouse_operator.model import Rung
from dormouse_operator.testing.nouns import a_worker


def test_the_ladder_has_what_all_workers_claim():
    assert sleep_levels.unclaimed([a_worker()]) == sleep_levels.unclaimed([]) == frozenset()
    assert sleep_levels.unclaimed([a_worker(), a_worker(sleep_levels=(1,))]) == {Rung.LEVEL2, Rung.LEVEL3}


def test_what_is_lacking_is_told():
    assert sleep_levels.words([a_worker()]) == ""
    assert sleep_levels.words([a_worker(sleep_levels=(3,))]) == "; its worker claims no sleep of level 1 and 2"
