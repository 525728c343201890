"""What a model's files say of its task and of how its vectors are made."""

import json

import pytest

from dormouse_worker.common.errors import ModelInvalid
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.files.task_files import Dense, Pooling, read_pooling, task_of

MEAN = {"pooling_mode_mean_tokens": True}


def write(path, *kinds, pooling=MEAN, **files):
    """Write sentence-transformers' modules of these kinds, each in a folder of its name."""
    modules = [
        {"path": "" if kind == "Transformer" else kind, "type": f"sentence_transformers.models.{kind}"}
        for kind in kinds
    ]
    contents = {"modules.json": modules, "Pooling/config.json": pooling, **files}
    for name, content in contents.items():
        file = path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("architectures", "task"),
    [
        (["LlamaForCausalLM"], "generate"),
        (["GPT2LMHeadModel"], "generate"),
        ([], "generate"),
        (["T5ForConditionalGeneration"], "generate"),
        (["BertModel"], "embed"),
        (["XLMRobertaForMaskedLM"], "embed"),
        (["BertForPreTraining"], "embed"),
        (["Qwen3Model"], "embed"),
    ],
)
def test_the_architecture_tells_the_task_unless_it_is_set(tmp_path, architectures, task):
    config = {"architectures": architectures}
    assert task_of(EngineSettings(model=str(tmp_path)), config) == task
    assert task_of(EngineSettings(model=str(tmp_path), task="embed"), config) == "embed"
    assert task_of(EngineSettings(model=str(tmp_path), task="generate"), config) == "generate"


def test_a_decoder_with_modules_makes_vectors(tmp_path):
    write(tmp_path, "Transformer", "Pooling")
    assert task_of(EngineSettings(model=str(tmp_path)), {"architectures": ["Qwen3ForCausalLM"]}) == "embed"


@pytest.mark.parametrize(("name", "mode"), [("Qwen3ForCausalLM", "lasttoken"), ("BertModel", "mean")])
def test_without_modules_a_decoders_last_token_counts_and_an_encoders_mean(tmp_path, name, mode):
    pooling = read_pooling(tmp_path, {"architectures": [name], "matryoshka_dimensions": [64, 16]})
    assert pooling == Pooling((mode,), dimensions=(16, 64))


def test_modules_are_read_as_sentence_transformers_reads_them(tmp_path):
    modes = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}
    dense = {"Dense/config.json": {"activation_function": "torch.nn.modules.activation.Tanh"}}
    length = {"sentence_bert_config.json": {"max_seq_length": 256}}
    write(tmp_path, "Transformer", "Pooling", "Dense", pooling=modes, **dense, **length)
    tanh = Dense(tmp_path / "Dense", "torch.nn.modules.activation.Tanh")
    assert read_pooling(tmp_path, {}) == Pooling(("cls", "mean"), (tanh,), normalizes=False, max_length=256)


@pytest.mark.parametrize("said", ["lasttoken", ["lasttoken"]])
def test_the_newer_way_to_name_the_pooling_is_read(tmp_path, said):
    write(tmp_path, "Transformer", "Pooling", "Normalize", pooling={"pooling_mode": said})
    assert read_pooling(tmp_path, {}) == Pooling(("lasttoken",), normalizes=True)


@pytest.mark.parametrize(
    ("kinds", "files", "why"),
    [
        (
            ("Transformer",),
            {},
            "the modules are Transformer; known is Transformer, Pooling, then Dense, then Normalize",
        ),
        (
            ("Transformer", "Pooling", "Normalize", "Dense"),
            {},
            "the modules are Transformer, Pooling, Normalize, Dense",
        ),
        (("Transformer", "Pooling", "Pooling"), {}, "the modules are"),
        (("Transformer", "CNN"), {}, "module 'sentence_transformers.models.CNN' is not known; known are Transformer"),
        (("Transformer", "Pooling"), {"pooling": {}}, r"pooling is \[\]; known are cls, max, mean"),
        (("Transformer", "Pooling"), {"pooling": {"pooling_mode": "odd"}}, r"pooling is \['odd'\]"),
        (("Transformer", "Pooling"), {"pooling": {**MEAN, "include_prompt": False}}, "include_prompt is false"),
        (("Transformer", "Pooling"), {"modules.json": "{}"}, "a list of modules is needed"),
        (("Transformer", "Pooling"), {"modules.json": "nonsense"}, "not readable as JSON"),
        ((), {"modules.json": [{"type": "x.Transformer", "path": "../up"}]}, "points out of the model's directory"),
    ],
)
def test_modules_that_are_not_known_are_refused_by_name(tmp_path, kinds, files, why):
    write(tmp_path, *kinds, **files)
    with pytest.raises(ModelInvalid, match=why):
        read_pooling(tmp_path, {})


@pytest.mark.parametrize("said", ["x", 5, {"x": 64}, [[]], [True], [0], ["64"]], ids=str)
def test_lengths_of_vectors_that_are_none_are_refused_by_name(tmp_path, said):
    with pytest.raises(ModelInvalid, match=r"config\.json: matryoshka_dimensions is .*; a list of whole numbers"):
        read_pooling(tmp_path, {"matryoshka_dimensions": said})
