"""The lean decoder over weights on their way: each part is waited for before it computes, and nothing else changes."""

import pytest
import torch

from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.context import forward_context
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.lean.arriving import arriving, find_tensors
from dormouse_worker.model.loader import load
from dormouse_worker.model.testing import write_tiny_model

NUM_LAYERS = 3
TOKENS = torch.arange(12)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    directory = write_tiny_model(tmp_path_factory.mktemp("model"), "qwen3", num_hidden_layers=NUM_LAYERS)
    model = load(EngineSettings(model=str(directory), model_impl="lean"), CpuDevice(Host()))
    yield model.lean
    model.weights.close()


class Journal:
    """Answers attention with the queries, and writes down what was waited for and what computed, in order."""

    def __init__(self, decoder):
        self.events = []
        self._parts = {id(tensor): name for name, part in parts_of(decoder).items() for tensor in find_tensors(part)}

    def wait(self, tensors):
        self.events.append("wait " + " ".join(dict.fromkeys(self._parts[id(tensor)] for tensor in tensors)))

    def attend(self, call, query, *_):
        self.events.append(f"compute {call.layer_idx}")
        return query


def parts_of(decoder):
    layers = {f"layer{i}": layer for i, layer in enumerate(decoder.layers)}
    return {"start": (decoder.embedding, decoder.rotary), **layers, "end": (decoder.norm, decoder.head)}


def compute(decoder, context):
    with torch.inference_mode(), forward_context(context):
        return decoder.forward(TOKENS, TOKENS, torch.tensor([3, 11]))


def test_each_layer_waits_for_its_own_weights_and_the_head_for_the_last(decoder):
    journal = Journal(decoder)
    compute(arriving(decoder, journal.wait), journal)
    layers = [event for i in range(NUM_LAYERS) for event in (f"wait layer{i}", f"compute {i}")]
    assert journal.events == ["wait start", *layers, "wait end"]


def test_what_is_computed_is_the_same(decoder):
    journal = Journal(decoder)
    assert torch.equal(compute(arriving(decoder, journal.wait), journal), compute(decoder, journal))


def test_a_wait_that_fails_fails_the_pass(decoder):
    journal = Journal(decoder)

    def wait(tensors):
        journal.wait(tensors)
        if journal.events[-1] == "wait layer1":
            raise RuntimeError("not copied")

    with pytest.raises(RuntimeError, match="not copied"):
        compute(arriving(decoder, wait), journal)
    assert journal.events[-2:] == ["compute 0", "wait layer1"]


def test_all_weights_of_the_module_are_waited_for(decoder):
    """What a part has and `find_tensors` does not see would be computed with before it is there."""
    journal = Journal(decoder)
    waited = []
    compute(arriving(decoder, waited.extend), journal)
    sizes = sum(tensor.numel() for tensor in waited)
    layer = sum(tensor.numel() for tensor in find_tensors(decoder.layers[0]))
    assert layer == 2 * 32 + 2 * 8 + (32 + 2 * 2 * 8 + 32) * 32 + 3 * 48 * 32
    assert sizes == NUM_LAYERS * layer + 2 * 260 * 32 + 32 + 4
