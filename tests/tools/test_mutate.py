"""What is told of a run of the mutants."""

from __future__ import annotations

from tools.mutate import parse, tell

RESULTS = """
    dormouse_operator.decide.scaling.x_decide__mutmut_1: killed
    dormouse_operator.decide.scaling.x_decide__mutmut_2: survived
    dormouse_operator.decide.scaling.x_decide__mutmut_3: no tests
    dormouse_worker.engine.swap.xǁSwapSpaceǁgive__mutmut_1: timeout
    dormouse_worker.engine.request.xǁRequestǁadd__mutmut_1: not checked
"""


def test_each_module_is_told_with_what_lives_of_what_was_run():
    assert list(tell(parse(RESULTS))) == [
        "dormouse_operator.decide.scaling: 2 of 3",
        "dormouse_worker.engine.swap: 0 of 1",
    ]
