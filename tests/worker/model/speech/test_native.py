"""Whisper by our kernels: it says what torch says, and of a window the same whoever is beside it."""

import pytest
import torch

from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.engine.speech.batch import SpeechRow
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.quantized.modules import QuantizedEmbedding, QuantizedLinear
from dormouse_worker.model.speech import native
from dormouse_worker.model.speech.cache import Places
from dormouse_worker.model.speech.loader import load_speech
from dormouse_worker.model.speech.network import Network
from dormouse_worker.model.testing_speech import write_whisper
from dormouse_worker.native.library import Missing, load_kernels
from tests.worker.model.quantized.checkpoints import quantize_model

NUM_PLACES = 3
PROMPTS = ([1, 2, 3], [4, 5, 6, 7, 8])


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Return a model's directory that nobody changes."""
    return write_whisper(tmp_path_factory.mktemp("whisper"))


@pytest.fixture
def load(directory):
    """Return a function that loads the model, closed after the test."""
    loaded = []

    def made(**settings):
        loaded.append(load_speech(EngineSettings(model=str(directory), **settings), CpuDevice(Host())))
        return loaded[-1]

    yield made
    for model in loaded:
        model.weights.close()


class OldGpu(CpuDevice):
    """What has no arithmetic of 8 bits, and computes on the CPU."""

    capability = (8, 0)


def test_weights_of_other_tools_ask_nothing_of_a_device(tmp_path):
    """They are plain ones there: we read them."""
    plain = quantize_model(write_whisper(tmp_path), "fp8")
    model = load_speech(EngineSettings(model=str(tmp_path), dtype="float32"), OldGpu(Host()))
    name = "model.decoder.layers.0.self_attn.q_proj.weight"
    torch.testing.assert_close(model.network.module.get_parameter(name), plain[name], atol=1e-6, rtol=1e-6)
    model.weights.close()


@pytest.fixture
def kernels():
    """Skip the test where no kernels were compiled."""
    if isinstance(found := load_kernels(), Missing):
        pytest.skip(found.reason)
    return found


class Heard:
    """Places with windows, and what a network says of rows of them."""

    def __init__(self, model, network):
        self.network, self.places = network, Places.allocate(model.sizes, NUM_PLACES, torch.device("cpu"))
        noise = torch.Generator().manual_seed(3)
        for place in range(NUM_PLACES):
            window = torch.randn(model.spec.num_mels, model.spec.window_frames, generator=noise)
            network.encode(window, self.places, place)

    @torch.inference_mode()
    def logits(self, *rows):
        return self.network.logits(self.network.decode(rows, self.places))


def begun(place, prompt):
    return SpeechRow(place, prompt, 0, len(prompt))


def then(place, prompt, token):
    return SpeechRow(place, [*prompt, token], len(prompt), len(prompt))


@torch.inference_mode()
def follow(heard):
    """Return logits of two prompts, begun one after the other, and of a token of each."""
    first, second = PROMPTS
    return [
        heard.logits(begun(0, first)),
        heard.logits(then(0, first, 9), begun(2, second)),
        heard.logits(then(0, [*first, 9], 10), then(2, second, 11)),
    ]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("dtype", "apart"), [("float32", 1e-5), ("bfloat16", 0.05)])
def test_the_kernels_say_what_torch_says(load, dtype, apart):
    ours, plain = load(dtype=dtype), load(dtype=dtype, attention_backend="sdpa")
    assert ours.info.compute_path.startswith("native ")
    with torch.inference_mode():
        found, wanted = (follow(Heard(model, model.network)) for model in (ours, plain))
    for some, others in zip(found, wanted, strict=True):
        assert (some - others).norm() <= apart * others.norm()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@torch.inference_mode()
def test_a_window_gets_the_same_bits_whoever_is_beside_it(load, quantization):
    model = load(dtype="float32", quantization=quantization)
    together, alone = follow(Heard(model, model.network)), Heard(model, model.network)
    first, second = PROMPTS
    assert torch.equal(together[1][1:], alone.logits(begun(2, second)))
    assert torch.equal(together[2][1:], alone.logits(then(2, second, 11)))
    alone.logits(begun(0, first))
    assert torch.equal(together[1][:1], alone.logits(then(0, first, 9)))


def rounded_maps(model):
    """Return the paths of maps of fewer bits, of the first layers and of what is no layer's."""
    named = model.network.module.named_modules(remove_duplicate=False)
    found = {path.removeprefix("model.") for path, part in named if isinstance(part, QuantizedLinear)}
    return {path for path in found if ".layers." not in path or ".layers.0." in path}


def maps_of(layer, *names):
    return {f"{layer}.layers.0.{name}" for name in names}


OWN = tuple(f"self_attn.{name}_proj" for name in ("q", "k", "v", "out"))
CROSS = tuple(f"encoder_attn.{name}_proj" for name in ("q", "k", "v", "out"))


@pytest.mark.parametrize(
    ("quantization", "maps"),
    [
        ("int8", maps_of("encoder", *OWN, "fc1", "fc2") | maps_of("decoder", *OWN, *CROSS, "fc1", "fc2")),
        ("int4", maps_of("decoder", *OWN, "encoder_attn.q_proj", "encoder_attn.out_proj", "fc1", "fc2")),
    ],
)
def test_all_maps_have_8_bits_and_those_that_meet_one_token_4(load, quantization, maps):
    """Convolutions have all of theirs."""
    model = load(dtype="float32", quantization=quantization)
    assert rounded_maps(model) == maps | {"proj_out"}
    assert isinstance(model.network.module.model.decoder.embed_tokens, QuantizedEmbedding)
    assert quantization in model.info.compute_path


@pytest.mark.usefixtures("kernels")
@torch.inference_mode()
def test_of_8_bits_nearly_the_same_is_said(load):
    rounded, plain = load(dtype="float32", quantization="int8"), load(dtype="float32")
    for some, others in zip(follow(Heard(rounded, rounded.network)), follow(Heard(plain, plain.network)), strict=True):
        assert 0 < (some - others).norm() <= 0.1 * others.norm()


def window_of(model, seed=5):
    noise = torch.Generator().manual_seed(seed)
    return torch.randn(model.spec.num_mels, model.spec.window_frames, generator=noise)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("settings", "apart"), [({}, 2e-6), ({"quantization": "int8"}, 0.02), ({"dtype": "bfloat16"}, 0.02)]
)
@torch.inference_mode()
def test_a_window_is_encoded_as_by_torch_in_float32(load, settings, apart):
    ours, plain = load(**{"dtype": "float32"} | settings), load(dtype="float32", attention_backend="sdpa")
    window = window_of(plain)
    found, wanted = (model.network.arithmetic.encode(window) for model in (ours, plain))
    assert found.dtype == torch.float32
    assert (found - wanted).norm() <= apart * wanted.norm()


@pytest.mark.parametrize("quantization", ["none", "int8"])
@torch.inference_mode()
def test_a_window_is_encoded_to_the_same_bits_by_any_number_of_threads(load, kernels, quantization):
    model = load(dtype="float32", quantization=quantization)
    found = []
    for count in (1, 2, 3):
        kernels.set_num_threads(count)
        found.append(model.network.arithmetic.encode(window_of(model)))
    kernels.set_num_threads(torch.get_num_threads())
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@torch.inference_mode()
def test_torch_reads_fewer_bits_too(load):
    model = load(dtype="float32", quantization="int8")
    in_torch = load(dtype="float32", quantization="int8", model_impl="transformers")
    assert in_torch.info.compute_path.startswith("torch: ")
    for some, others in zip(
        follow(Heard(in_torch, in_torch.network)), follow(Heard(model, model.network)), strict=True
    ):
        assert (some - others).norm() <= 0.1 * others.norm()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"model_impl": "transformers"}, "model_impl is transformers"),
        ({"attention_backend": "sdpa"}, "attention_backend is sdpa"),
        ({"dtype": "float16"}, "the kernels compute in float32 and bfloat16"),
    ],
)
def test_where_torch_computes_the_reason_is_told(load, settings, why):
    assert load(**settings).info.compute_path.endswith(f"; not native: {why}")


def test_what_gates_in_another_way_is_torchs(tmp_path):
    path = write_whisper(tmp_path, activation_function="relu")
    model = load_speech(EngineSettings(model=str(path), dtype="float32"), CpuDevice(Host()))
    assert model.info.compute_path.endswith("; not native: activation_function is relu, and the kernels know gelu")
    model.weights.close()


def test_without_kernels_torch_computes(load, monkeypatch):
    monkeypatch.setattr(native, "load_kernels", lambda: Missing("none were compiled"))
    model = load(dtype="float32")
    assert model.info.compute_path.endswith("; not native: none were compiled")
    assert isinstance(model.network, Network)
