"""Every rank finds out by itself which layers are its own, and all come to the same split."""

import pytest

from dormouse_worker.common.host import Host
from dormouse_worker.common.layout import Layout
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.loader import load
from dormouse_worker.model.parallel.plans import stage_plan
from dormouse_worker.model.parallel.stages import SAMPLER_WEIGHTS, count_costs
from dormouse_worker.model.testing import write_tiny_model


def load_part(directory, layout):
    settings = EngineSettings(model=str(directory), block_size=4, load_format="dummy")
    return load(settings, CpuDevice(Host()), layout)


def layers_of(directory, layout):
    spec = load_part(directory, layout).cache_spec
    return [*range(spec.first_layer, spec.first_layer + len(spec.layers))]


@pytest.mark.parametrize(("architecture", "num_layers"), [("llama", "num_hidden_layers"), ("gpt2", "n_layer")])
@pytest.mark.parametrize("tied", [False, True])
def test_a_large_vocabulary_takes_layers_from_the_last_stage(tmp_path, architecture, num_layers, tied):
    sizes = {num_layers: 6, "vocab_size": 300, "tie_word_embeddings": tied}
    directory = write_tiny_model(tmp_path / "model", architecture, **sizes)
    parts = [[layers_of(directory, Layout(tensor, 2, stage * tensor)) for stage in (0, 1)] for tensor in (1, 2)]
    assert parts[0] == parts[1], "ranks of a stage have the same layers"
    assert [layer for part in parts[0] for layer in part] == list(range(6))
    assert len(parts[0][0]) > len(parts[0][1]) >= 1


def test_costs_are_the_weights_that_a_token_is_multiplied_with(tmp_path):
    hidden, vocabulary = 32, 260
    module = load_part(write_tiny_model(tmp_path / "model"), Layout()).module
    costs = count_costs(module, stage_plan(module, 2))
    attention, mlp, norms = hidden * (32 + 16 + 16 + 32), 3 * hidden * 48, 2 * hidden
    assert costs.layers == (9 * (attention + mlp + norms),) * 2, "and an eighth more"
    assert costs.before == 8 * hidden, "one row of the embedding"
    assert costs.behind == 8 * (hidden + hidden * vocabulary + SAMPLER_WEIGHTS * vocabulary)
