"""Tokens of prompts with videos equal transformers' greedy `generate` in float32; positions are theirs."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

from dormouse_worker.common.commands import TAGS
from dormouse_worker.model.testing_vision import VIDEO, build_prompt, draw_film, draw_picture, reference_vision
from dormouse_worker.model.testing_vision_families import IMAGE
from dormouse_worker.model.vision.rope import prompt_positions
from tests.worker.executor.test_drafts import corrupt
from tests.worker.model.vision.conftest import MAX_TOKENS

APART = 8  # positions from step to step: 4 to a second, of which a step has 2
# family → where the steps of a video are in time; none = text tells it
MOMENTS = {
    "qwen2_5_vl": [(0, 0), (1, APART), (2, 2 * APART)],
    "qwen2_vl": [(0, 0), (1, 1), (2, 2)],
    "qwen3_vl": [],
}
SECONDS = 2.0
QUICK = {"qwen2_5_vl"}


def prompts_of(family):
    film, image = draw_film(family, 3), draw_picture(family, 1)
    return {"film": [[1, 2], film, [3, 4]], "both": [[9], image, [8, 7], film, [5]]}


@pytest.fixture(params=[pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in MOMENTS])
def family(request):
    return request.param


@pytest.fixture
def expected(seeing, family, tmp_path):
    """What transformers says of each prompt."""
    return {
        name: reference_vision(seeing(family), parts, tmp_path, MAX_TOKENS, moments=MOMENTS[family], seconds=SECONDS)
        for name, parts in prompts_of(family).items()
    }


def test_answers_are_transformers_whatever_happens_on_the_way(make_seer, family, expected):
    prompts, moments = prompts_of(family), MOMENTS[family]
    seer = make_seer(family, max_num_seqs=16, max_num_batched_tokens=16, speculation_method="ngram")
    predicted = {name: corrupt(tokens, 5) for name, tokens in expected.items()}
    assert seer.ask(prompts, moments=moments, preempts=True) == expected
    assert seer.counters.preemptions
    encoded = seer.num_encoded
    assert seer.ask(prompts, moments=moments, predicted=predicted) == expected
    assert seer.takes_drafts
    assert (seer.num_encoded, seer.counters.prefix_hits > 0) == (encoded, True)
    seer.add("resumed", prompts["film"], moments=moments, outputs=expected["film"][:3])
    tokens = []
    while (outputs := seer.engine.step()) is not None:
        tokens += [token for output in outputs.outputs for token in output.token_ids]
    assert tokens == expected["film"][3:]
    seer.worker.sleep(1, TAGS)
    seer.engine.forget_prefixes()
    seer.worker.wake_up(TAGS)
    seer.engine.forget_ranks()
    assert seer.ask(prompts, moments=moments) == expected
    assert seer.num_encoded > encoded


def test_frames_at_another_speed_share_no_prefix(make_seer):
    prompts = prompts_of("qwen2_5_vl")
    seer = make_seer("qwen2_5_vl")
    (slow,) = seer.ask({"film": prompts["film"]}, moments=MOMENTS["qwen2_5_vl"]).values()
    hits, encoded = seer.counters.prefix_hits, seer.num_encoded
    (fast,) = seer.ask({"film": prompts["film"]}, moments=[(0, 0), (1, 1), (2, 2)]).values()
    num_known = 2 + prompts["film"][1][0].runs[0]
    assert hits < seer.counters.prefix_hits <= num_known, "of the first step alone: it is where it was"
    assert seer.num_encoded == encoded, "rows are the same, keys are not"
    assert slow != fast


def test_the_next_turn_finds_the_answer_in_its_known_beginning(make_seer, seeing, tmp_path):
    parts, moments = prompts_of("qwen2_5_vl")["film"], MOMENTS["qwen2_5_vl"]
    seer = make_seer("qwen2_5_vl")
    (answer,) = seer.ask({"first": parts}, moments=moments, max_tokens=12).values()
    again = [*parts, answer, [6]]
    whole = reference_vision(seeing("qwen2_5_vl"), again, tmp_path, MAX_TOKENS, moments=moments, seconds=SECONDS)
    assert seer.ask({"second": again}, moments=moments) == {"second": whole}
    assert seer.counters.prefix_hits > sum(step.runs[0] for step in parts[1]), "of the answer, too"


KINDS = {"qwen2_vl": Qwen2VLModel, "qwen2_5_vl": Qwen2_5_VLModel, "qwen3_vl": Qwen3VLModel}


@pytest.mark.parametrize("kind", KINDS)
def test_positions_are_those_of_transformers(kind, tmp_path):
    model = KINDS[kind]
    film, image = draw_film(kind, 3), draw_picture(kind, 2)
    parts = [[1], film, [2, 3], image, [4], film, [5]]
    tokens, images = build_prompt(parts, tmp_path, MOMENTS[kind])
    fields = {"config": SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2, tokens_per_second=4))}
    own = SimpleNamespace(
        **fields, get_vision_position_ids=lambda *args, **more: model.get_vision_position_ids(None, *args, **more)
    )
    ids = torch.tensor([tokens])
    theirs, _ = model.get_rope_index(
        own,
        ids,
        (ids == IMAGE) + 2 * (ids == VIDEO),
        image.tensors["image_grid_thw"],
        torch.tensor([[3, *film[0].grid[1:]]] * 2),
        **({"second_per_grid_ts": torch.tensor([SECONDS] * 2)} if kind == "qwen2_5_vl" else {}),
    )
    ours = prompt_positions(images, len(tokens), 2)
    np.testing.assert_array_equal(ours[:, :-1], theirs[:, 0].numpy())
    assert ours[:, -1].tolist() == (ours[:, -2] + 1).tolist(), "an answer goes on behind the last word"
