"""Tokens of prompts with sounds equal transformers' greedy `generate` in float32, whatever happens on the way."""

import pytest
import torch
from transformers import AutoModelForMultimodalLM

from dormouse_worker.common.commands import TAGS
from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.host import Host
from dormouse_worker.common.layout import Layout
from dormouse_worker.executor.testing import make_settings
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.loader import load
from dormouse_worker.model.testing_vision import build_prompt, draw_picture
from dormouse_worker.model.testing_vision_families import IMAGE
from dormouse_worker.model.vision.features import sound_rows
from tests.worker.executor.test_drafts import corrupt

FAMILY = "qwen2_audio"


def prompts_of():
    long, short, whole = (draw_picture(FAMILY, seed) for seed in (0, 1, 2))
    other = draw_picture(FAMILY, 3)  # as long as the first
    return {
        "none": [[1, 2, 3, 4, 5]],
        "one": [[1, 2], long, [3, 4]],
        "other": [[1, 2], other, [3, 4]],
        "three": [[9], whole, [8, 7], short, [5], long, [6]],
    }


@pytest.fixture
def expected(said):
    """What transformers says of each prompt."""
    return {name: said(FAMILY, parts) for name, parts in prompts_of().items()}


def test_answers_are_transformers_whatever_happens_on_the_way(make_seer, expected):
    prompts = prompts_of()
    seer = make_seer(FAMILY, max_num_seqs=16, max_num_batched_tokens=16, speculation_method="ngram")
    predicted = {name: corrupt(tokens, 5) for name, tokens in expected.items()}
    assert "native" in seer.worker.get_model_info().compute_path.split()
    assert seer.ask(prompts, preempts=True) == expected
    assert seer.counters.preemptions
    encoded = seer.num_encoded
    assert seer.ask(prompts, predicted=predicted) == expected
    assert seer.takes_drafts
    assert (seer.num_encoded, seer.counters.prefix_hits > 0) == (encoded, True)
    seer.add("resumed", prompts["three"], outputs=expected["three"][:3])
    tokens = []
    while (outputs := seer.engine.step()) is not None:
        tokens += [token for output in outputs.outputs for token in output.token_ids]
    assert tokens == expected["three"][3:]
    seer.worker.sleep(2, TAGS)
    seer.engine.forget_prefixes()
    seer.worker.wake_up(TAGS)
    seer.engine.forget_ranks()
    assert seer.ask(prompts) == expected
    assert seer.num_encoded > encoded


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rows_are_what_transformers_puts_in_the_place_of_tokens(seeing, tmp_path, seed):
    sound, begins = draw_picture(FAMILY, seed), []
    tokens = torch.tensor([build_prompt([[1, 2], sound, [3]], tmp_path)[0]])
    whole = AutoModelForMultimodalLM.from_pretrained(seeing(FAMILY), dtype=torch.float32).eval()
    whole.model.language_model.register_forward_pre_hook(
        lambda *given: begins.append(given[-1]["inputs_embeds"]), with_kwargs=True
    )
    with torch.inference_mode():
        whole(tokens, **sound.tensors)
        ((rows,),) = sound_rows(whole.model, sound.tensors)
    torch.testing.assert_close(rows, begins[0][0, tokens[0] == IMAGE])


def test_equal_tokens_before_another_sound_are_no_known_prefix(make_seer, expected):
    prompts, seer = prompts_of(), make_seer(FAMILY)
    assert expected["one"] != expected["other"]
    assert [seer.ask({name: prompts[name]}) for name in ("one", "other")] == [
        {name: expected[name]} for name in ("one", "other")
    ]
    assert not seer.counters.prefix_hits


def test_transformers_own_decoder_says_the_same(make_seer, expected):
    assert make_seer(FAMILY, model_impl="transformers", max_num_batched_tokens=64).ask(prompts_of()) == expected


def test_what_goes_wrong_with_a_sound_is_told_of_sounds(seeing, make_seer):
    """A file that is no sound's, and settings that sounds are not combined with."""
    seer = make_seer(FAMILY)
    seer.add("bad", [[1, 2], draw_picture(FAMILY, 0)])
    next(seer.folder.iterdir()).write_bytes(b"short")
    (why,) = seer.engine.step().failed.values()
    assert why.startswith("a sound cannot be encoded: ")
    with pytest.raises(InvalidSettings, match=r"enable_lora is True, .* reads sounds \(qwen2_audio\)"):
        load(make_settings(seeing(FAMILY), enable_lora=True), CpuDevice(Host()), Layout())
