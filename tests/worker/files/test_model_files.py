"""What a model's directory must look like; each refusal names the file and the remedy. Without torch."""

import json
import struct

import pytest

from dormouse_worker.common.errors import ModelInvalid, ModelNotFound, PickleRefused
from dormouse_worker.files.model_files import check_model_files


def safetensors_bytes(num_values=4):
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 4 * num_values]}})
    return struct.pack("<Q", len(header)) + header.encode() + bytes(4 * num_values)


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes())
    return tmp_path


def write_index(directory, *names):
    index = {"weight_map": {f"w{i}": name for i, name in enumerate(names)}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def test_a_whole_directory_passes(directory):
    files = check_model_files(directory, "auto")
    assert files.config == {"model_type": "llama"}
    assert files.weight_files == (directory / "model.safetensors",)


def test_shards_named_by_an_index_pass(directory):
    for name in ("a.safetensors", "b.safetensors"):
        (directory / name).write_bytes(safetensors_bytes())
    write_index(directory, "b.safetensors", "a.safetensors", "b.safetensors")
    files = check_model_files(directory, "auto")
    assert files.weight_files == (directory / "a.safetensors", directory / "b.safetensors")


def test_random_weights_need_only_the_configuration(directory):
    (directory / "model.safetensors").unlink()
    assert check_model_files(directory, "dummy").weight_files == ()


def test_pickles_beside_safetensors_are_left_alone(directory):
    (directory / "pytorch_model.bin").write_bytes(b"pickle")
    assert check_model_files(directory, "auto").weight_files == (directory / "model.safetensors",)


def test_a_missing_directory(tmp_path):
    with pytest.raises(ModelNotFound, match=r"nowhere: no such directory; check spec.model.uri"):
        check_model_files(tmp_path / "nowhere", "auto")


def test_a_file_in_place_of_the_directory(directory):
    with pytest.raises(ModelNotFound):
        check_model_files(directory / "config.json", "auto")


def test_code_of_its_own_is_never_run(directory):
    """Not by these checks, which know no architectures; the engine refuses what only that code could compute."""
    (directory / "config.json").write_text('{"auto_map": {"AutoModel": "modeling.Evil"}}')
    assert check_model_files(directory, "auto").config["auto_map"]


@pytest.mark.parametrize("value", ["0", "-1", "null", "true", "1.5", '"8"', "[4, 0]"])
@pytest.mark.parametrize("field", ["num_hidden_layers", "vocab_size", "n_head"])
def test_a_size_that_no_model_has_is_named_with_what_is_allowed(directory, field, value):
    for config, told in (({}, field), ({"text_config": {}}, f"text_config.{field}")):
        part = config.get("text_config", config)
        part[field] = json.loads(value)
        (directory / "config.json").write_text(json.dumps(config))
        with pytest.raises(ModelInvalid, match=rf"config.json: {told} is .*; allowed: whole numbers of at least 1; "):
            check_model_files(directory, "auto")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_hidden_layers": [2, 10**9]}, "num_hidden_layers is 1000000000"),
        ({"n_layers": 10_001}, "n_layers is 10001"),
        ({"num_nextn_predict_layers": 10**4000}, "num_nextn_predict_layers is 10000000000000000000"),
        ({"vision_config": {"depth": 10**9}}, "vision_config.depth is 1000000000"),
        ({"a_config": {"text_config": {"num_layers": 10**9}}}, "a_config.text_config.num_layers is 1000000000"),
        ({"vocab_size": 2**31}, "vocab_size is 2147483648"),
        ({"max_position_embeddings": 2**31}, "max_position_embeddings is 2147483648"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_size_beyond_any_models_is_named_before_anybody_counts_up_to_it(directory, config, told):
    """Readers build a layer for each that is told of, so that a wrong number would cost all memory."""
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelInvalid, match=rf"config.json: {told}, more than any model has; allowed: at most \d+; "):
        check_model_files(directory, "auto")
    with pytest.raises(ModelInvalid, match=told):
        check_model_files(directory, "dummy")


def test_the_largest_sizes_are_allowed(directory):
    config = {"n_layer": 10_000, "vocab_size": 2**31 - 1, "vision_config": {"depth": None}, "quantization_config": []}
    (directory / "config.json").write_text(json.dumps(config))
    assert check_model_files(directory, "auto").config == config


@pytest.mark.parametrize("experts", [{"num_local_experts": 0}, {"num_experts": None}, {}])
def test_a_model_without_experts_asks_none_of_them(directory, experts):
    config = {"vocab_size": 5, "num_experts_per_tok": 0, **experts}
    (directory / "config.json").write_text(json.dumps(config))
    assert check_model_files(directory, "auto").config == config


@pytest.mark.parametrize("field", ["num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"])
def test_a_model_with_experts_asks_at_least_one(directory, field):
    (directory / "config.json").write_text(json.dumps({field: 4, "num_experts_per_tok": 0}))
    with pytest.raises(ModelInvalid, match="num_experts_per_tok is 0; allowed: whole numbers of at least 1, or null"):
        check_model_files(directory, "auto")


@pytest.mark.parametrize("field", ["num_key_value_heads", "head_dim", "intermediate_size", "max_position_embeddings"])
def test_a_size_that_the_architecture_can_choose_may_be_null_and_differ_from_layer_to_layer(directory, field):
    for value in (None, 8, [8, 4, None]):
        (directory / "config.json").write_text(json.dumps({field: value}))
        check_model_files(directory, "auto")
    (directory / "config.json").write_text(json.dumps({field: 0}))
    with pytest.raises(ModelInvalid, match=f"{field} is 0; allowed: whole numbers of at least 1, or null"):
        check_model_files(directory, "auto")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "last.ckpt"])
def test_pickled_weights_are_refused(directory, name):
    (directory / "model.safetensors").unlink()
    (directory / name).write_bytes(b"pickle")
    with pytest.raises(PickleRefused, match=f"{name}: pickled weights .* save_pretrained"):
        check_model_files(directory, "auto")


def _truncate(directory):
    (directory / "model.safetensors").write_bytes(safetensors_bytes()[:-1])


def _lengthen(directory):
    (directory / "model.safetensors").write_bytes(safetensors_bytes() + b"x")


def _write(name, content):
    return lambda directory: (directory / name).write_bytes(content)


def _header(header, length=None):
    return _write("model.safetensors", struct.pack("<Q", len(header) if length is None else length) + header)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda directory: (directory / "config.json").unlink(), "config.json: missing"),
        (_write("config.json", b"{"), "config.json: not readable as JSON"),
        (_write("config.json", b"\xff"), "config.json: not readable as JSON"),
        (_write("config.json", b"[" * 200_000), "config.json: not readable as JSON"),
        (_write("config.json", b"[]"), "config.json: holds list, a JSON object is needed"),
        (_write("config.json", b'{"architectures": 5}'), "config.json: architectures is 5, a list of names is needed"),
        (_write("config.json", b'{"architectures": [5]}'), r"config.json: architectures is \[5\], a list of names"),
        (lambda directory: (directory / "model.safetensors").unlink(), "neither model.safetensors nor"),
        (_truncate, "truncated or damaged: .* bytes, its header needs"),
        (_lengthen, "truncated or damaged"),
        (_write("model.safetensors", b""), "truncated: 0 bytes"),
        (_header(b"{}", length=1 << 62), "header of 4611686018427387904 bytes"),
        (_header(b"{x"), "header is no JSON \\("),
        (_header(b"[]"), "header is no JSON object"),
        (_header(b'{"w": {}}'), "without dtype, shape or data_offsets"),
        (_header(b'{"w": 5}'), "without dtype, shape or data_offsets"),
        (lambda directory: write_index(directory, "gone.safetensors"), "gone.safetensors: named by .* but missing"),
        (lambda directory: write_index(directory, "../config.json"), "points out of the model's directory"),
        (write_index, "weight_map is missing or empty"),
        (_write("model.safetensors.index.json", b"{}"), "weight_map is missing or empty"),
    ],
)
def test_damage_is_named_with_its_file(directory, damage, message):
    damage(directory)
    with pytest.raises(ModelInvalid, match=message):
        check_model_files(directory, "auto")
