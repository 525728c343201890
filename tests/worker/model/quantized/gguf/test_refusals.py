"""GGUF files that are not what they say, or asked for what they are not for, are refused by name."""

import gguf
import msgspec
import numpy as np
import pytest
from transformers import AutoConfig

from dormouse_worker.common.errors import InvalidSettings, ModelInvalid
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.files.gguf.folder import as_directory
from dormouse_worker.files.model_files import check_model_files
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.weights.kind import ModelKind
from dormouse_worker.model.weights.loading import load_weights
from tests.worker.files.gguf.kit import write


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda t: t.pop("blk.1.ffn_up.weight"), r"has no tensor for model\.layers\.1\.mlp\.up_proj\.weight"),
        (
            lambda t: t.update({"blk.0.odd.weight": np.ones(3, np.float32)}),
            r"tensor blk\.0\.odd\.weight, F32 \[3\], has no place in a LlamaForCausalLM",
        ),
        (lambda t: t.update({"blk.0.attn_q.bias": np.ones(9, np.float32)}), r"attn_q\.bias is \[9\], and"),
        (lambda t: t.update({"blk.0.attn_norm.weight": np.full(256, np.nan, np.float32)}), "holds nan at element 0"),
        (lambda t: t.update({"blk.0.attn_v.weight": np.ones((64, 256), np.float32)}), r"is \[64, 256\], and"),
    ],
)
def test_tensors_that_contradict_are_refused_by_name(load_from, model_file, tmp_path, edit, words):
    _, file = model_file("llama")
    reader = gguf.GGUFReader(file)
    tensors = {one.name: np.array(one.data) for one in reader.tensors}
    edit(tensors)
    keys = {n: f.contents() for n, f in reader.fields.items() if not n.startswith(("GGUF.", "general."))}
    other = write(tmp_path / "other.gguf", keys, tensors)
    with pytest.raises(ModelInvalid, match=words):
        load_from(other)


def test_another_task_is_refused_by_name(model_file, tmp_path):
    settings = as_directory(EngineSettings(model=str(model_file()[1]), tokenizer_cache=str(tmp_path / "cache")))
    settings = msgspec.structs.replace(settings, task="embed")
    files = check_model_files(settings.model_path, "auto")
    config = AutoConfig.from_pretrained(settings.model_path)
    with pytest.raises(InvalidSettings, match="task is embed, and GGUF files are read for the task generate alone"):
        load_weights(config, settings, CpuDevice(Host()), files, kind=ModelKind())
