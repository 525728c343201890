"""An EAGLE head that does not go with its model is refused by name, before anything is served."""

from __future__ import annotations

import pytest
import torch

from dormouse_worker.model.testing_vision import write_tiny_vision_model
from tests.worker.executor import draft_kit
from tests.worker.executor.draft_kit import change_config, change_weights
from tests.worker.executor.sleeping_rank import SleepingRank


@pytest.fixture(scope="module")
def ignorant(tiny_model, tmp_path_factory):
    """Return the directory of a head that goes with the model, and has learned nothing."""
    return draft_kit.head(tmp_path_factory.mktemp("heads") / "ignorant", tiny_model)


@pytest.fixture(scope="module")
def third(tiny_model, tmp_path_factory):
    """Return the directory of an EAGLE-3 head of chance that goes with the model."""
    return draft_kit.third_head(tmp_path_factory.mktemp("heads") / "third", tiny_model)


def less(weights, name="layers.0.mlp.down_proj.weight"):
    del weights[name]


def narrow(weights, name="fc.weight"):
    weights[name] = weights[name][:, :-1].contiguous()


def halve(weights, name="layers.0.self_attn.o_proj.weight"):
    weights[name] = weights[name].half()


def more(weights):
    weights["layers.0.input_layernorm.weight"] = torch.ones(32)


def wide(weights):
    weights["midlayer.self_attn.k_proj.weight"] = weights["midlayer.self_attn.k_proj.weight"][:, :32].contiguous()


def foreign(weights):
    weights["d2t"][-1] = 260


def refusal(directory, head, worker="no torch", **settings):
    rank = SleepingRank(
        directory,
        worker,
        keeps=False,
        starts=False,
        speculation_method="eagle",
        speculation_model=str(head),
        **settings,
    )
    assert rank.status.state == "FAILED"
    return rank.status


@pytest.mark.parametrize(
    ("spoil", "reason", "named"),
    [
        (lambda head: change_config(head, hidden_size=48), "InvalidSettings", "hidden_size is 48, and 32 is needed"),
        (lambda head: change_config(head, vocab_size=259), "InvalidSettings", "vocab_size is 259"),
        (lambda head: change_config(head, num_hidden_layers=2), "InvalidSettings", "num_hidden_layers is 2"),
        (lambda head: change_config(head, hidden_act="gelu"), "InvalidSettings", "hidden_act is 'gelu'"),
        (lambda head: change_weights(head, less), "ModelInvalid", "layers.0.mlp.down_proj.weight is missing"),
        (lambda head: change_weights(head, narrow), "ModelInvalid", "fc.weight is [32, 63], not [32, 64]"),
        (lambda head: change_weights(head, halve), "InvalidSettings", "is F16, and the model computes in F32"),
        (lambda head: change_weights(head, more), "ModelInvalid", "input_layernorm.weight is no tensor of"),
        (lambda head: (head / draft_kit.WEIGHTS).unlink(), "ModelInvalid", "is there"),
    ],
)
def test_what_does_not_go_with_its_model_is_refused_by_name(tiny_model, ignorant, tmp_path, spoil, reason, named):
    head = draft_kit.same(tmp_path / "head", ignorant)
    spoil(head)
    status = refusal(tiny_model, head)
    assert status.failure_message.startswith(f"speculation_model {head}: ")
    assert named in status.failure_message
    assert status.failure_reason == reason


@pytest.mark.parametrize(
    ("spoil", "reason", "named"),
    [
        (
            lambda head: change_config(head, eagle_aux_hidden_state_layer_ids=[0, 1, 3]),
            "InvalidSettings",
            "eagle_aux_hidden_state_layer_ids is [0, 1, 3], and the model has 2 layers",
        ),
        (lambda head: change_config(head, draft_vocab_size=261), "InvalidSettings", "draft_vocab_size is 261"),
        (
            lambda head: change_config(head, norm_before_residual=True),
            "InvalidSettings",
            "norm_before_residual is true",
        ),
        (lambda head: change_weights(head, wide), "ModelInvalid", "k_proj.weight is [16, 32], not [16, 64]"),
        (lambda head: change_weights(head, foreign), "ModelInvalid", "and the model has 260 tokens"),
    ],
)
def test_so_is_what_is_wrong_with_one_of_eagles_third_kind(tiny_model, third, tmp_path, spoil, reason, named):
    head = draft_kit.same(tmp_path / "head", third)
    spoil(head)
    status = refusal(tiny_model, head)
    assert status.failure_message.startswith(f"speculation_model {head}: ")
    assert named in status.failure_message
    assert status.failure_reason == reason


@pytest.mark.parametrize("worker", ["no torch", "cpu"])
def test_quantized_weights_and_one_that_is_gone_are_refused(tiny_model, ignorant, tmp_path, worker):
    status = refusal(tiny_model, ignorant, worker, quantization="int8")
    assert "quantization is int8, and speculation_method is eagle" in status.failure_message
    status = refusal(tiny_model, tmp_path / "gone", worker)
    assert (status.failure_reason, "gone" in status.failure_message) == ("ModelNotFound", True)


def test_a_model_that_reads_images_is_refused(third, tmp_path):
    sees = write_tiny_vision_model(tmp_path / "sees", "llava")
    assert "the model reads images, which heads do not" in refusal(sees, third, "cpu").failure_message


@pytest.mark.parametrize("worker", ["no torch", "cpu"])
def test_one_that_finds_no_room_is_named_with_its_bytes(tiny_model, ignorant, worker):
    status = refusal(tiny_model, ignorant, worker, memory_limit_bytes=32 << 20)
    assert status.failure_reason == "InsufficientMemory"
    assert "draft model's weights" in status.failure_message
