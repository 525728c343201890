"""Tokens of prompts with images equal transformers' greedy `generate` in float32, whatever happens on the way."""

import pytest

from dormouse_worker.common.commands import TAGS
from dormouse_worker.model.testing_vision import draw_picture
from dormouse_worker.model.testing_vision_families import CASES
from tests.worker.executor.test_drafts import corrupt

FAMILIES = sorted(CASES)
FIRST = {"llava"}
KINDS = FIRST | {"qwen3_vl", "gemma3", "idefics3"}  # positions in three axes; images in one pass; many small pictures


def families(quick):
    """Run a test for these families each time, and for all others in the long run."""
    every = [pytest.param(family, marks=() if family in quick else pytest.mark.slow) for family in FAMILIES]
    return pytest.mark.parametrize("family", every)


most_in_slow = families(FIRST)


def prompts_of(family):
    a, b, c = (draw_picture(family, seed) for seed in (1, 2, 3))
    return {
        "none": [[1, 2, 3, 4, 5]],
        "one": [[1, 2], a, [3, 4]],
        "other": [[1, 2], b, [3, 4]],
        "three": [[9], c, [8, 7], a, [5], b, [6]],
    }


def chunks(family, size):
    """Return settings for passes of so many tokens, or as few as an image takes that is computed in one."""
    return {"max_num_seqs": 4, "max_num_batched_tokens": 20 if CASES[family].is_whole else size}


def num_tokens(parts):
    return sum(len(part) if isinstance(part, list) else sum(part.runs) + part.num_between for part in parts)


@pytest.fixture
def compare(said):
    """Return a function that asks a worker all prompts of a family and compares."""

    def ask(seer, family, **sampling):
        prompts = prompts_of(family)
        assert seer.ask(prompts, **sampling) == {name: said(family, parts) for name, parts in prompts.items()}

    return ask


@families(KINDS)
def test_in_chunks_through_images(make_seer, compare, family):
    seer = make_seer(family, **chunks(family, 7))
    compare(seer, family)
    assert ("native" in seer.worker.get_model_info().compute_path.split()) == CASES[family].is_lean


@most_in_slow
@pytest.mark.parametrize("impl", ["auto", "transformers"])
def test_together_in_one_pass(make_seer, compare, family, impl):
    compare(make_seer(family, model_impl=impl), family)


@most_in_slow
def test_torchs_attention_says_the_same(make_seer, compare, family):
    seer = make_seer(family, attention_backend="sdpa", **chunks(family, 13))  # our own decoder, in torch
    compare(seer, family)


@most_in_slow
@pytest.mark.parametrize("host_blocks", [0, 64])
def test_preempted_by_recomputing_and_by_swapping(make_seer, said, family, host_blocks):
    prompts = {str(seed): [[1, 2], draw_picture(family, seed), [3, 4]] for seed in (1, 2, 3)}
    num_blocks = sum(-(-num_tokens(parts) // 4) for parts in prompts.values()) + 2  # and each grows
    seer = make_seer(family, num_blocks=num_blocks, host_blocks=host_blocks, max_model_len=4 * num_blocks)
    gives_back = {*seer.worker.layer_windows()} != {None}  # layers with a window so much that all find room
    assert seer.ask(prompts, preempts=gives_back) == {name: said(family, parts) for name, parts in prompts.items()}
    assert seer.counters.preemptions
    assert bool(seer.counters.swaps) == bool(host_blocks)


@most_in_slow
def test_known_prefixes_are_of_the_same_images_alone(make_seer, compare, family):
    seer = make_seer(family)
    for name, parts in prompts_of(family).items():
        seer.ask({name: parts})
    hits, encoded = seer.counters.prefix_hits, seer.num_encoded
    assert not hits, "different images stand behind equal tokens"
    compare(seer, family)
    assert seer.counters.prefix_hits
    assert seer.num_encoded == encoded


@most_in_slow
@pytest.mark.parametrize("count", [1, 4])
def test_what_another_worker_began_goes_on_alike(make_seer, said, family, count):
    parts = prompts_of(family)["three"]
    whole = said(family, parts)
    seer = make_seer(family, **chunks(family, 9))
    seer.add("a", parts, outputs=whole[:count])
    tokens = []
    while (outputs := seer.engine.step()) is not None:
        tokens += [token for output in outputs.outputs for token in output.token_ids]
    assert tokens == whole[count:]


@most_in_slow
@pytest.mark.parametrize("level", [1, 2])
def test_after_a_sleep_images_are_read_again(make_seer, compare, family, level):
    seer = make_seer(family)
    compare(seer, family)
    encoded = seer.num_encoded
    seer.worker.sleep(level, TAGS)
    seer.engine.forget_prefixes()
    seer.worker.wake_up(TAGS)
    seer.engine.forget_ranks()
    compare(seer, family)
    assert seer.num_encoded == 2 * encoded


@most_in_slow
def test_drafts_change_nothing(make_seer, compare, said, family):
    seer = make_seer(family, max_num_seqs=32, speculation_method="ngram")
    predicted = {name: corrupt(said(family, parts), 3) for name, parts in prompts_of(family).items()}
    compare(seer, family, predicted=predicted)
    assert seer.takes_drafts
