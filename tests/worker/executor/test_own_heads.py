"""A head for multi-token prediction, read from its model's own checkpoint, changes nothing but the time."""

from __future__ import annotations

import pytest
import torch

from dormouse_worker.executor.testing_drafts import draft_always
from dormouse_worker.model.testing import write_tiny_model
from tests.worker.executor import draft_kit
from tests.worker.executor.draft_kit import change_config, change_weights
from tests.worker.executor.plain_heads import PlainOwn
from tests.worker.executor.sleeping_rank import SleepingRank
from tests.worker.executor.test_draft_heads import GREEDY, LONG, Overheard
from tests.worker.executor.test_drafts import ASKED, PERIOD, Asking, count, same_but_rounding

FAMILIES = ["deepseek_v3", "glm4_moe"]


def ask(directory, **settings):
    """Return a rank that always asks its model's head for all that there is room for."""
    asking = Asking(directory, "mtp", max_num_seqs=64, **settings)
    draft_always(asking.rank.controller._engine)
    return asking


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_that_learned_is_right_and_every_kind_of_sampling_says_the_same(tmp_path, family):
    model = write_tiny_model(tmp_path / "model", family)
    plain = Asking(model, "off")
    truth, _ = plain.say(ASKED[:5])
    plain.close()
    draft_kit.own_head(model, rows=[[*PERIOD, *truth[0][0]]], steps=40)
    asking = ask(model)
    assert "; drafts by its own head for multi-token prediction: torch" in asking.rank.status.model.compute_path
    said, told = asking.say(ASKED[:5])
    same_but_rounding(said, truth)
    scored, taken = count(told)
    assert scored > taken > 0
    for level in (1, 2):
        asking.rank.sleep(level)
        asking.rank.wake()
        said, told = asking.say(ASKED[:1])
        same_but_rounding(said, truth[:1])
        assert count(told)[1] > 0
    asking.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_it_says_what_it_says_over_the_whole_sequence(tmp_path, monkeypatch, family):
    model = write_tiny_model(tmp_path / "model", family)
    head = draft_kit.own_head(model)
    small = {"max_num_batched_tokens": 16, "max_num_seqs": 8, "swap_space_bytes": 1 << 20}
    asking = Asking(model, "mtp", num_speculative_tokens=3, **small)
    draft_always(asking.rank.controller._engine)
    overheard, plainly = Overheard(asking, monkeypatch), PlainOwn(model, head)
    asking.say([{**GREEDY, "max_tokens": 36 + number} for number in range(5)], prompt=LONG[:37])
    assert asking.rank.has_swapped
    asking.say([GREEDY], prompt=LONG[:37])  # of which a part is known by now
    assert len(overheard.heard) > 20
    for tokens, drafts in overheard.heard[::5]:
        assert plainly.regret(tokens, drafts) < 1e-3
    asking.close()


def test_its_part_of_the_cache_and_its_weights_are_counted(tmp_path):
    model = write_tiny_model(tmp_path / "model", "glm4_moe")
    draft_kit.own_head(model)
    plain, asking = Asking(model, "off"), Asking(model, "mtp")
    ours, without = asking.rank.status.report, plain.rank.status.report
    assert ours.block_bytes == without.block_bytes * 3 // 2
    assert ours.draft_bytes == ours.weights_bytes - without.weights_bytes > 0
    assert count(asking.say([GREEDY])[1])[0] > 0, "it is asked without being told to"
    plain.close()
    asking.close()


def test_a_model_of_16_bits_has_one_of_16_bits_whose_routers_bias_stays_as_it_is(tmp_path):
    model = write_tiny_model(tmp_path / "model", "glm4_moe")
    draft_kit.own_head(model)

    def halve_all(weights):
        for name, tensor in weights.items():
            weights[name] = tensor if name.endswith("correction_bias") else tensor.bfloat16()

    change_weights(model, halve_all)
    change_config(model, dtype="bfloat16")
    asking = ask(model)
    assert asking.rank.status.model.dtype == "bfloat16"
    _, told = asking.say([GREEDY])
    assert count(told)[0] > 0
    assert sum(message.drafts.num_model_failures for message in told if message.drafts) == 0
    asking.close()


def test_one_that_does_not_come_back_is_done_without(tmp_path):
    model = write_tiny_model(tmp_path / "model", "glm4_moe")
    draft_kit.own_head(model)
    asking = ask(model)
    said, _ = asking.say([GREEDY])
    change_weights(model, lambda weights: weights.pop("model.layers.2.eh_proj.weight"))
    asking.rank.sleep(2)
    asking.rank.wake()
    assert "no drafts, as the head did not come back" in asking.rank.status.model.compute_path
    again, told = asking.say([GREEDY])
    assert (again, count(told)) == (said, (0, 0))
    asking.close()


def less(weights):
    del weights["model.layers.2.mlp.experts.3.up_proj.weight"]


def narrow(weights, name="model.layers.2.eh_proj.weight"):
    weights[name] = weights[name][:, :-1].contiguous()


def more(weights):
    weights["model.layers.2.self_attn.sinks"] = torch.ones(4)


def halve(weights, name="model.layers.2.mlp.gate.e_score_correction_bias"):
    weights[name] = weights[name].half()


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda model: change_config(model, num_nextn_predict_layers=2), "num_nextn_predict_layers is 2"),
        (lambda model: change_weights(model, less), "model.layers.2.mlp.experts.3.up_proj.weight is missing"),
        (lambda model: change_weights(model, narrow), "model.layers.2.eh_proj.weight is [32, 63], not [32, 64]"),
        (lambda model: change_weights(model, more), "model.layers.2.self_attn.sinks is no tensor of"),
        (lambda model: change_weights(model, halve), "e_score_correction_bias is F16, not F32"),
    ],
)
def test_what_is_no_such_head_is_refused_by_name(tmp_path, spoil, named):
    model = write_tiny_model(tmp_path / "model", "glm4_moe")
    draft_kit.own_head(model)
    spoil(model)
    assert named in refusal(model)


def test_models_whose_heads_are_not_read_are_told_which_are(tiny_model, tmp_path):
    assert "model_type is 'llama'; read are the heads of deepseek_v3 and glm4_moe" in refusal(tiny_model)
    assert "num_nextn_predict_layers is 0" in refusal(
        write_tiny_model(tmp_path / "none", "glm4_moe", num_nextn_predict_layers=0)
    )
    assert "quantization is int8, and speculation_method is mtp" in refusal(tiny_model, quantization="int8")
    assert "load_format is dummy, and speculation_method is mtp" in refusal(tiny_model, load_format="dummy")


def refusal(directory, **settings):
    rank = SleepingRank(directory, "cpu", keeps=False, starts=False, speculation_method="mtp", **settings)
    assert rank.status.state == "FAILED"
    return rank.status.failure_message
