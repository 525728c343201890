"""Two models' tokens are compared as far as they can be read, whatever their files say."""

from __future__ import annotations

import json

import pytest

from dormouse_worker.files.draft_files import check_vocabulary

WORDS = {"a": 0, "b": 1}


def model(path, tokenizer):
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"vocab_size": 2}))
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return path


@pytest.mark.parametrize(
    "tokenizer",
    [
        {"model": 5},
        {"model": {"vocab": 5}},
        {"model": {"vocab": [[["a"], 0.5], [], 5, ["b", 0.5]]}},
        {"model": {"vocab": WORDS}, "added_tokens": 5},
        {"model": {"vocab": WORDS}, "added_tokens": [5, {"content": ["c"]}, {"id": 3}, {"content": "c"}]},
    ],
    ids=str,
)
def test_what_is_no_list_of_tokens_is_passed_over(tmp_path, tokenizer):
    same = [model(tmp_path / name, tokenizer) for name in ("model", "draft")]
    check_vocabulary(*same)
