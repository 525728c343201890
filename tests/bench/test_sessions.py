"""The picture of a session over a night has a bar for each thing that a night brings."""

from bench.results import Row
from bench.sessions import draw_night


def test_every_gap_has_a_bar_beside_computing():
    over_gaps = [Row("after level 2", 0.07, "s", 2.8), Row("in another process", 0.1, "s", 2.9)]
    picture = draw_night([*over_gaps, Row("encrypted", 0.5, "s", 2.7)], Row("handed over", 0.33, "s", 2.6))
    assert [words in picture for words in ("2800 ms", "70 ms", "100 ms", "330 ms", "500 ms")] == [True] * 4 + [False]
    assert all(words in picture for words in ("computed anew", "level 2", "from Zero, or a roll-out", "drained"))
