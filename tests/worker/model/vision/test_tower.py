"""What is refused of an image's file when it is encoded; what a model that reads images is not combined with."""

import msgspec
import pytest
import torch
from safetensors.torch import save
from transformers import AutoConfig

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.host import Host
from dormouse_worker.common.layout import Layout
from dormouse_worker.executor.testing import make_settings
from dormouse_worker.files import vision_files
from dormouse_worker.files.hearing_files import QWEN2_AUDIO
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.lean.build import build_lean
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.model.loader import load
from dormouse_worker.model.testing_vision import draw_picture
from dormouse_worker.model.vision.families import FAMILIES, check_passes, check_weights

GOOD = [[1], draw_picture("llava", 1), [2]]
OTHER = [[1], draw_picture("llava", 2), [2]]


@pytest.fixture
def ask(make_seer):
    """Return a function that asks with other contents in the first image's file; it returns why the request failed."""
    seer = make_seer("llava")

    def with_contents(contents):
        seer.add("bad", GOOD)
        (request,) = [seer.engine._scheduler.request("bad")]
        path = seer.folder / request.images[0].tensors
        image = msgspec.structs.replace(request.images[0], num_bytes=len(contents))
        path.write_bytes(contents)
        request.images = [image]
        seer.add("good", OTHER)
        failed, tokens = {}, []
        while (outputs := seer.engine.step()) is not None:
            failed |= outputs.failed
            tokens += [token for output in outputs.outputs for token in output.token_ids]
        seer.engine.check_integrity()
        assert seer.engine.num_failures_in_a_row == 0
        assert failed.keys() == {"bad"}
        return failed["bad"], tokens

    return with_contents


BROKEN = [
    (b"nothing like it", "its file cannot be read"),
    (save({"other": torch.ones(1)}), "its file has other; needed are pixel_values"),
    (save({"pixel_values": torch.ones(1, 3, 16, 16, 2)}), "an image cannot be encoded"),
    (save({"pixel_values": torch.ones(2, 3, 16, 16)}), "the encoder makes 32 rows of it, and the prompt has 16"),
    (save({"pixel_values": torch.full((1, 3, 16, 16), torch.nan)}), "numbers for it are not finite"),
]


def test_a_broken_file_fails_its_request_only(ask, said):
    expected = said("llava", OTHER)
    for contents, why in BROKEN:
        told, tokens = ask(contents)
        assert why in told
        assert tokens == expected, why


def test_a_file_that_changed_its_size_fails_its_request_only(make_seer):
    seer = make_seer("llava")
    seer.add("bad", GOOD)
    next(seer.folder.iterdir()).write_bytes(b"short")
    (why,) = seer.engine.step().failed.values()
    assert "5 bytes are there" in why


def test_the_profile_counts_the_rows_that_are_kept(make_seer):
    assert make_seer("llava", max_num_batched_tokens=32).worker.get_memory_report().image_rows == 256


def test_quantized_checkpoints_and_shards_are_refused_by_name(seeing, tmp_path):
    with pytest.raises(InvalidSettings, match="load_format is sharded_state, and llava reads images"):
        check_weights(AutoConfig.from_pretrained(seeing("llava")), make_settings(tmp_path, load_format="sharded_state"))
    config = AutoConfig.from_pretrained(seeing("llava"))
    config.quantization_config = {"quant_method": "gptq"}
    with pytest.raises(InvalidSettings, match="weights are quantized, and llava reads images"):
        check_weights(config, make_settings(tmp_path))


@pytest.mark.parametrize(
    ("settings", "layout", "name"),
    [
        ({"enable_lora": True}, Layout(), "enable_lora is True"),
        ({"quantization": "int8"}, Layout(), "quantization is int8"),
        ({"tensor_parallel_size": 2}, Layout(2, 1, 0), "tensor_parallel_size is 2"),
        ({"pipeline_parallel_size": 2}, Layout(1, 2, 0), "pipeline_parallel_size is 2"),
    ],
)
def test_what_is_not_combined_with_images_is_refused_by_name(seeing, settings, layout, name):
    with pytest.raises(InvalidSettings, match=rf"{name}, .* reads images \(llava\)"):
        load(make_settings(seeing("llava"), **settings), CpuDevice(Host()), layout)


def test_passes_that_are_too_small_for_a_whole_image_are_refused_with_the_least(seeing, tmp_path):
    config = AutoConfig.from_pretrained(seeing("gemma3"))
    fits = make_settings(tmp_path, max_num_seqs=4, max_num_batched_tokens=20)
    check_passes(config, fits)
    with pytest.raises(
        InvalidSettings, match=r"max_num_batched_tokens is 20; set it to 21 or more: gemma3 .* 16 tokens"
    ):
        check_passes(config, msgspec.structs.replace(fits, max_num_seqs=5))


def test_a_rotary_embedding_of_other_sections_is_not_ours(make_seer):
    module = make_seer("qwen2_vl").worker._model.module
    module.model.language_model.rotary_emb.mrope_section = [1, 1, 1]
    assert build_lean(module, {}) == Unfit("3 of 4 frequencies have an axis")


def test_front_and_engine_know_the_same_kinds():
    assert vision_files.FAMILIES.keys() - {"pixtral"} == FAMILIES.keys() - {QWEN2_AUDIO}, "Pixtral's model is a LLaVA"
