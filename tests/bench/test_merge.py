"""A result file that two programs write."""

from __future__ import annotations

import json

from bench.merge import merge_results, merged, recorded
from bench.results import AtMost, Row


def test_a_row_takes_the_place_of_the_one_that_says_the_same_and_the_others_stay():
    old = [{"what": "a", "ours": 1}, {"what": "b", "ours": 2}, {"what": "c", "ours": 3}]
    new = [{"what": "d", "ours": 4}, {"what": "b", "ours": 5}]
    assert merged(old, new) == [{"what": "a", "ours": 1}, {"what": "b", "ours": 5}, {"what": "c", "ours": 3}, new[0]]


def test_the_file_is_made_and_then_added_to(tmp_path):
    merge_results("gateway", [Row("overhead", 1.0, "ms"), Row("lost", 3, "requests", goal=AtMost(0))], tmp_path)
    path = merge_results("gateway", [Row("lost", 0, "requests", goal=AtMost(0))], tmp_path)
    assert recorded("gateway", tmp_path) == {"overhead": 1.0, "lost": 0.0}
    assert recorded("another", tmp_path) == {}
    content = json.loads(path.read_text("utf-8"))
    assert list(content) == ["machine", "commit", "date", "rows"]
    assert [(row["what"], row["ours"], row["holds"]) for row in content["rows"]] == [
        ("overhead", 1.0, None),
        ("lost", 0.0, True),
    ]
