"""What cannot be divided is refused at the start, with the numbers and the setting to change."""

import pytest

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.host import Host
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.loader import load
from dormouse_worker.model.testing import write_tiny_model


@pytest.mark.parametrize(
    ("architecture", "overrides", "sizes", "message"),
    [
        (
            "llama",
            {},
            (3, 1),
            "tensor_parallel_size is 3; LlamaForCausalLM has 4 attention heads, which it must divide",
        ),
        (
            "llama",
            {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3},
            (2, 1),
            "tensor_parallel_size is 2; LlamaForCausalLM has 3 key-value heads; one must divide the other",
        ),
        (
            "llama",
            {"intermediate_size": 47},
            (2, 1),
            r"tensor_parallel_size is 2; model\.layers\.0\.mlp\.gate_proj has 47 rows to divide",
        ),
        ("llama", {}, (1, 3), "pipeline_parallel_size is 3; the model has 2 layers, one for each stage is the least"),
        ("opt", {}, (2, 1), "tensor_parallel_size is 2; OPTForCausalLM has no plan for how ranks share its layers"),
        ("opt", {}, (1, 2), "pipeline_parallel_size is 2; OPTForCausalLM has no plan for stages; set it to 1"),
        ("mixtral", {}, (2, 1), "tensor_parallel_size is 2; MixtralForCausalLM wants .* divided as .*; set it to 1"),
        (
            "llama",
            {"num_attention_heads": 8, "head_dim": 4, "vocab_size": 9, "bos_token_id": 0, "eos_token_id": 1},
            (8, 1),
            "tensor_parallel_size is 8; a vocabulary of 9 tokens leaves none to tensor rank 7",
        ),
    ],
    ids=str,
)
def test_numbers_that_do_not_fit_are_named(tmp_path, architecture, overrides, sizes, message):
    directory = write_tiny_model(tmp_path / "model", architecture, **overrides)
    last = Layout(*sizes, sizes[0] * sizes[1] - 1)
    with pytest.raises(InvalidSettings, match=message):
        load(EngineSettings(model=str(directory), block_size=4), CpuDevice(Host()), last)
