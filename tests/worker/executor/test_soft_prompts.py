"""Soft prompts on a real rank beside what else touches its cache: a draft model, and 8 bits."""

from __future__ import annotations

from contextlib import closing

from tests.worker.executor import draft_kit
from tests.worker.executor.test_adapters import AdaptedRank, tokens_of


def test_a_draft_model_changes_no_token_and_sleeps_with_them(tiny_model, tmp_path):
    with closing(AdaptedRank(tiny_model, tmp_path, "cpu", soft=True, max_num_seqs=32)) as plain:
        truth, _ = tokens_of(plain)
    assert len({str(tokens) for tokens in truth}) == 3
    draft = {"speculation_method": "draft", "speculation_model": str(draft_kit.blurred(tmp_path / "d", tiny_model))}
    with closing(AdaptedRank(tiny_model, tmp_path, "cpu", soft=True, max_num_seqs=32, **draft)) as rank:
        for level in (0, 1, 2):
            if level:
                rank.sleep(level)
                rank.wake()
            said, num_right = tokens_of(rank)
            assert said == truth
            assert num_right > 0


def test_in_a_cache_of_8_bits_chunks_and_cached_prefixes_change_no_token(tiny_model, tmp_path):
    rounded = {"soft": True, "kv_cache_dtype": "int8"}
    with closing(AdaptedRank(tiny_model, tmp_path, "cpu", **rounded)) as rank:
        truth, _ = tokens_of(rank)
        assert tokens_of(rank)[0] == truth
    with closing(AdaptedRank(tiny_model, tmp_path, "cpu", max_num_batched_tokens=8, **rounded)) as rank:
        assert tokens_of(rank)[0] == truth
