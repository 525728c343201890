"""Layers that torch compiles: the same numbers, nothing compiled while serving, and clear words where it cannot be."""

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.forward.choose import describe_path
from dormouse_worker.model.lean.compiled import CACHE_VARIABLE, compile_layers
from dormouse_worker.model.lean.decoder import angles_of
from dormouse_worker.model.loader import load
from dormouse_worker.model.parallel.communicator import Alone
from dormouse_worker.model.testing import reference_generate
from tests.worker.model.test_parity import MAX_TOKENS, PROMPTS, make_engine, run

pytestmark = pytest.mark.timeout(600)  # a C++ compiler works here, and shares the machine with others

CPU = CpuDevice(Host())
SIZES = (1, 5)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Keep what is compiled out of the user's cache, and compile here: a helper would import torch anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("compiled")))
        patch.setattr(inductor, "compile_threads", 1)
        yield


@pytest.fixture(scope="module")
def compiled_model(tiny_model):
    """Return a model that is compiled for passes of one token and of four; others it computes as they are."""
    return load(settings(tiny_model("qwen3"), compile_sizes=(1, 4)), CPU)


class Eager:
    """Stands for torch's compiler: notes how many tokens the functions that it returns were called with."""

    def __init__(self):
        self.sizes = []

    def __call__(self, function):
        def call(layer, hidden, *rest):
            self.sizes.append(len(hidden))
            return function(layer, hidden, *rest)

        return call


def settings(directory, **fields):
    return EngineSettings(model=str(directory), attention_backend="sdpa", **fields)


def compiled_with(compiler, directory, sizes=SIZES):
    lean = load(settings(directory), CPU).lean
    return compile_layers(lean, sizes, "", compile_with=compiler)


@pytest.mark.slow
def test_a_model_with_compiled_layers_says_what_transformers_says(tiny_model, compiled_model):
    directory = tiny_model("qwen3")
    assert run(make_engine(compiled_model), PROMPTS) == {
        name: reference_generate(directory, prompt, MAX_TOKENS) for name, prompt in PROMPTS.items()
    }


def test_only_passes_of_a_listed_size_are_computed_by_what_was_compiled(tiny_model):
    compiler = Eager()
    decoder, report = compiled_with(compiler, tiny_model("llama"), sizes=(5, 1, 5))
    assert (report.sizes, decoder.parts.compiled_sizes, set(compiler.sizes)) == ((1, 5), (1, 5), {1, 5})


class Another(Alone):
    """A communicator of another class than the one that layers are compiled with."""


def test_what_was_compiled_is_run_and_nothing_more_is_compiled(tiny_model):
    graphs, calls = [], []

    def backend(graph, _):
        graphs.append(graph)
        return lambda *inputs: calls.append(graph) or graph.forward(*inputs)

    decoder, _ = compiled_with(
        lambda function: torch.compile(function, backend=backend, fullgraph=True, dynamic=False), tiny_model("llama")
    )
    num_compiled = len(graphs)
    layer = decoder.layers[0]
    size, width = len(layer.attention.norm.weight), layer.attention.output.weight.shape[1]
    for hidden, num_calls in ((torch.ones(5, size), 2), (torch.ones(size, 5).T, 0)):  # strides are looked at
        calls.clear()
        with torch.inference_mode():
            angles = angles_of(decoder.rotary, torch.arange(5), torch.float32)
            decoder.parts.make_heads(layer, hidden.clone(), angles)
            decoder.parts.finish(layer, hidden.clone(), torch.ones(5, width), Another())
        assert len(calls) == num_calls
    assert len(graphs) == num_compiled


def test_a_compiler_that_fails_says_why_and_what_to_do(tiny_model):
    def broken(_):
        def call(*_):
            raise RuntimeError("no C compiler\nlong trace")

        return call

    with pytest.raises(InvalidSettings, match=r"compile_sizes: .*no C compiler; leave it empty"):
        compiled_with(broken, tiny_model("llama"))


@pytest.mark.slow
def test_the_status_says_what_is_compiled(compiled_model):
    assert "lean compiled for 1, 4 tokens" in describe_path(compiled_model, "sdpa")


def test_nothing_is_compiled_where_our_kernels_compute(tiny_model, monkeypatch):
    monkeypatch.setattr("dormouse_worker.model.loader.compile_layers", None)
    model = load(EngineSettings(model=str(tiny_model("llama")), compile_sizes=SIZES), CPU)
    assert model.lean.parts.compiled_sizes == ()


def test_a_model_that_transformers_computes_is_refused(tiny_model):
    with pytest.raises(InvalidSettings, match=r"compile_sizes needs our own forward pass.*model_impl is transformers"):
        load(settings(tiny_model("llama"), compile_sizes=SIZES, model_impl="transformers"), CPU)


@pytest.mark.slow  # it compiles twice
def test_a_second_start_finds_what_was_compiled_beside_the_profiles(tiny_model, tmp_path, monkeypatch):
    monkeypatch.delenv(CACHE_VARIABLE)
    wanted = settings(tiny_model("llama"), compile_sizes=(2,), profile_cache=str(tmp_path / "kept"))
    found = []
    for _ in range(2):
        torch.compiler.reset()
        counters.clear()
        load(wanted, CPU)
        found.append((counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"]))
    assert found == [(0, 2), (2, 0)]
    assert (tmp_path / "kept" / "compiled").is_dir()
