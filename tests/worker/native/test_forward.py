"""The whole pass in one call says what transformers says, in every variant; what it cannot is left to others."""

import functools
from dataclasses import replace

import pytest
import torch

from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.attention.native import NativeBackend
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.forward.choose import ForwardPaths, describe_path
from dormouse_worker.model.forward.in_torch import TorchForward
from dormouse_worker.model.kv_cache import KVCache
from dormouse_worker.model.lean.fit import build_native
from dormouse_worker.model.lean.native import NativeDecoder
from dormouse_worker.model.lean.unfit import Unfit
from dormouse_worker.model.loader import load
from dormouse_worker.model.quantized.rotation import rotate
from dormouse_worker.model.testing import VOCAB_SIZE, reference_generate, write_tiny_model
from dormouse_worker.native.library import Missing
from tests.worker.model.test_lean import LEAN, VARIANTS
from tests.worker.model.test_parity import MAX_TOKENS, PROMPTS, make_engine, run
from tests.worker.native.sequences import BLOCK_SIZE, compute, metadata_of, metadata_of_several

SHAPES = {
    "odd sizes": {"hidden_size": 36, "intermediate_size": 50, "head_dim": 6},
    "as a real one": {"hidden_size": 128, "intermediate_size": 352, "num_attention_heads": 8, "head_dim": 32},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a function (architecture, name of a variant or shape) → (directory, loader of it by settings)."""

    @functools.cache
    def directory(architecture, name=""):
        fields = SHAPES[name] if name in SHAPES else VARIANTS[name][1] if name else {}
        return write_tiny_model(tmp_path_factory.mktemp(architecture), architecture, **fields)

    return directory


@functools.cache
def expected_tokens(directory):
    return {name: reference_generate(directory, prompt, MAX_TOKENS) for name, prompt in PROMPTS.items()}


def load_with(kernels, directory, **settings):
    """Return the model whose passes these kernels compute."""
    model = load(EngineSettings(model=str(directory), block_size=BLOCK_SIZE, **settings), CpuDevice(Host()))
    native = build_native(model.lean, model.cache_spec.layers, kernels)
    assert isinstance(native, NativeDecoder), native
    return replace(model, native=native)


def raw_logits(model, backend, *, chunks=(17, 1, 1, 1), rows=None):
    """Return what a sequence that comes in these chunks gives, row by row, through a cache of its own."""
    cache = KVCache(model.cache_spec, 32, torch.device("cpu"))
    paths, start, found = ForwardPaths(TorchForward(model, cache), backend), 0, []
    for count in chunks:
        groups = [metadata_of(start, count, *group) for group in enumerate(model.cache_spec.windows)]
        positions = torch.arange(start, start + count)
        token_ids = (positions * positions * 7 + 3 * positions + 5) % 250
        wanted = torch.arange(count) if rows is None else torch.tensor(rows[len(found)], dtype=torch.long)
        found.append(compute(paths, groups, token_ids, wanted))
        start += count
    return torch.cat(found)


def logits_of(model, backend, **pass_of):
    """Return the same in float32."""
    return raw_logits(model, backend, **pass_of).float()


@pytest.mark.parametrize("architecture", LEAN)
def test_the_tokens_are_those_of_transformers(kernels, models, architecture):
    model = load_with(kernels, models(architecture))
    engine = make_engine(model, tokens=16, backend=NativeBackend(kernels=kernels))
    assert run(engine, PROMPTS) == expected_tokens(models(architecture))


@pytest.mark.parametrize(
    "wishes", [{"logprobs": 2}, {"prompt_logprobs": 1}, {"logit_bias": {3: 0.0}}, {"seed": 5}], ids=str
)
def test_what_else_is_asked_changes_no_token(kernels, models, wishes):
    model = load_with(kernels, models("llama"))
    engine = make_engine(model, tokens=16, backend=NativeBackend(kernels=kernels))
    assert run(engine, PROMPTS, **wishes) == expected_tokens(models("llama"))


@pytest.mark.parametrize(
    "wishes",
    [
        {},
        {"top_p": 0.9, "top_k": 40},
        {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3},
        {"min_tokens": 3, "stop_token_ids": (1, 2), "bad_words_token_ids": ((7,),), "repetition_penalty": 1.2},
    ],
    ids=str,
)
def test_random_tokens_are_those_that_torch_draws(kernels, models, wishes):
    model = load_with(kernels, models("llama"))
    ours, reference = (
        run(make_engine(model, tokens=16, backend=backend), PROMPTS, temperature=1.0, seed=11, **wishes)
        for backend in (NativeBackend(kernels=kernels), SdpaBackend())
    )
    assert ours == reference


@pytest.mark.parametrize("name", [*VARIANTS, *SHAPES])
def test_the_logits_are_those_of_the_decoder_in_every_variant(kernels, models, name):
    architecture = VARIANTS[name][0] if name in VARIANTS else "llama"
    model = load_with(kernels, models(architecture, name))
    expected = logits_of(model, SdpaBackend())
    assert expected.std() > 0.5  # else closeness would say nothing
    torch.testing.assert_close(logits_of(model, NativeBackend(kernels=kernels)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", LEAN)
def test_in_bfloat16_it_is_as_near_to_the_truth_as_torch(kernels, models, architecture):
    half = load_with(kernels, models(architecture), dtype="bfloat16")
    truth = logits_of(load_with(kernels, models(architecture)), SdpaBackend())
    ours, theirs = (logits_of(half, backend) for backend in (NativeBackend(kernels=kernels), SdpaBackend()))
    assert (ours - truth).norm() < 1.2 * (theirs - truth).norm()


def test_what_a_pass_stores_is_seen_by_the_others_in_it(kernels, models):
    """Five that come at once with one prompt: four of them read the blocks that the first one writes."""
    directory = models("llama")
    engine = make_engine(
        load_with(kernels, directory), num_blocks=64, seqs=5, caches=True, backend=NativeBackend(kernels=kernels)
    )
    expected = expected_tokens(directory)["3"]
    assert run(engine, {f"{copy}": PROMPTS["3"] for copy in range(5)}) == {f"{copy}": expected for copy in range(5)}
    assert engine._scheduler.counters.prefix_hits == 4 * 28


@pytest.mark.parametrize("architecture", LEAN)
@pytest.mark.parametrize("rows", [[[2, 9, 16], []], [[], [4]], [[*range(3, 17)], [0, 1, 3, 4]]], ids=str)
def test_only_the_rows_asked_for_are_answered(kernels, models, architecture, rows):
    """The last layer computes them alone: of the others it needs keys and values."""
    model = load_with(kernels, models(architecture), dtype="bfloat16")
    backend = NativeBackend(kernels=kernels)
    everything = logits_of(model, backend, chunks=(17, 5))
    chosen = logits_of(model, backend, chunks=(17, 5), rows=rows)
    assert torch.equal(chosen, everything[[*rows[0], *(17 + row for row in rows[1])]])


@pytest.mark.parametrize("rows", [[16, 22], [2, 4, 22], [17, 18, 21], [0, 1], []], ids=str)
def test_a_pass_may_want_no_row_of_some_sequences(kernels, models, rows):
    model, backend = load_with(kernels, models("llama")), NativeBackend(kernels=kernels)
    paths = ForwardPaths(TorchForward(model, KVCache(model.cache_spec, 40, torch.device("cpu"))), backend)
    metadata = metadata_of_several([17, 5, 1])
    every = torch.arange(len(metadata.positions))
    everything = compute(paths, [metadata], (every * 7 + 3) % 250, every)
    chosen = compute(paths, [metadata], (every * 7 + 3) % 250, torch.tensor(rows, dtype=torch.long))
    assert torch.equal(chosen, everything[rows])


@pytest.mark.parametrize("rows", [[9, 2, 16], [2, 2], [17], [-1]], ids=str)
def test_rows_that_do_not_ascend_within_the_batch_are_refused(kernels, models, rows):
    model, backend = load_with(kernels, models("llama")), NativeBackend(kernels=kernels)
    with pytest.raises(IndexError, match="rows that are wanted do not ascend within the 17 of the batch"):
        logits_of(model, backend, chunks=(17,), rows=[rows])


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE, 10**9])
def test_a_token_outside_the_vocabulary_is_refused(kernels, models, token_id):
    model, backend = load_with(kernels, models("llama")), NativeBackend(kernels=kernels)
    paths = ForwardPaths(TorchForward(model, KVCache(model.cache_spec, 32, torch.device("cpu"))), backend)
    with pytest.raises(IndexError, match="the token in row 1 is not in the vocabulary of 260"):
        compute(paths, [metadata_of(0, 2)], torch.tensor([3, token_id]), torch.arange(2))


@pytest.mark.parametrize(("architecture", "shape"), [("qwen3", ""), ("llama", "as a real one")])
def test_the_number_of_threads_and_the_cut_of_a_prompt_change_no_bit(kernels, models, architecture, shape):
    model, backend = load_with(kernels, models(architecture, shape)), NativeBackend(kernels=kernels)
    kernels.set_num_threads(2)
    expected = logits_of(model, backend, chunks=(40,))
    kernels.set_num_threads(3)
    assert torch.equal(logits_of(model, backend, chunks=(7, 20, 1, 12)), expected)


def test_where_another_backend_attends_the_decoder_computes(kernels, models):
    model = load_with(kernels, models("llama"), dtype="bfloat16")
    assert raw_logits(model, SdpaBackend()).dtype == torch.bfloat16
    assert raw_logits(model, NativeBackend(kernels=kernels)).dtype == torch.float32


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"dtype": "float16"}, "the weights are float16, and the kernels read float32 or bfloat16"),
        ({"model_impl": "transformers"}, "model_impl is transformers"),
    ],
)
def test_what_it_can_not_is_told(models, settings, reason):
    model = load(EngineSettings(model=str(models("llama")), **settings), CpuDevice(Host()))
    assert isinstance(model.native, Unfit)
    assert reason in model.native.reason or "not compiled" in model.native.reason
    assert describe_path(model, "sdpa").startswith(f"{model.impl}, attention sdpa; not native: ")


def test_the_status_names_the_path(kernels, models):
    model = load_with(kernels, models("llama"))
    assert describe_path(model, "native") == f"native {kernels.name}"
    assert describe_path(model, "sdpa") == "lean, attention sdpa; not native: attention is not"


def test_without_kernels_the_decoder_computes(models):
    model = load(EngineSettings(model=str(models("llama"))), CpuDevice(Host()))
    found = build_native(model.lean, model.cache_spec.layers, Missing("nobody compiled them"))
    assert found == Unfit("nobody compiled them")


def test_a_profiles_pass_takes_the_memory_of_the_whole_with_a_layer_of_each_kind(variants, tmp_path):
    """The last layer is a kind of its own: alone it would leave most of the workspace untouched."""
    kernels = next(iter(variants.values()))
    model = load_with(kernels, write_tiny_model(tmp_path, num_hidden_layers=5))
    short, taken = model.for_profile(), []
    for each in (model, short):
        forward = TorchForward(each, KVCache(model.cache_spec, 32, torch.device("cpu")))
        paths = ForwardPaths(forward, NativeBackend())
        compute(paths, [metadata_of(0, 17)], torch.arange(17), torch.arange(17))
        taken.append(forward.scratch.num_bytes)
    assert taken[0] == taken[1] > 0
    assert repr(model.native).startswith("NativeDecoder(5 layers, ")
    assert repr(short.native).startswith("NativeDecoder(2 layers, ")


def test_a_profile_of_layers_with_different_windows_has_one_of_each(variants, tmp_path):
    kernels = next(iter(variants.values()))
    model = load_with(kernels, write_tiny_model(tmp_path, num_hidden_layers=5))
    first, *others = model.lean.layers
    narrow = replace(first, attention=replace(first.attention, call=replace(first.attention.call, window=8)))
    native = NativeDecoder(replace(model.lean, layers=(narrow, narrow, *others)), kernels)
    assert repr(native.shortened()).startswith("NativeDecoder(3 layers, ")


class Rounding:
    """A format that rounds the rows first, as the kernels do where weights are of 8 bits."""

    def __init__(self, rounded):
        self._rounded = rounded

    def operands(self, rows, weight, scale):
        turned = rotate(rows)
        scales = turned.abs().amax(-1, keepdim=True) / 127
        rows = rotate((turned / scales).round() * scales).to(rows.dtype)
        return self._rounded.operands(rows, weight, scale)


def rounding(decoder):
    """Return the decoder with rows rounded before every linear map."""

    def of(linear):
        return replace(linear, format=Rounding(linear.format))

    def of_layer(layer):
        attention = replace(layer.attention, qkv=of(layer.attention.qkv), output=of(layer.attention.output))
        mlp = replace(layer.mlp, gate_up=of(layer.mlp.gate_up), down=of(layer.mlp.down))
        return replace(layer, attention=attention, mlp=mlp)

    return replace(decoder, layers=tuple(map(of_layer, decoder.layers)), head=of(decoder.head))


@pytest.mark.parametrize("method", ["int8", "int4"])
@pytest.mark.parametrize("tied", [False, True])
def test_weights_of_fewer_bits_are_computed_as_torch_does_with_rounded_rows(kernels, tmp_path, tied, method):
    directory = write_tiny_model(tmp_path, "qwen2", tie_word_embeddings=tied, **SHAPES["as a real one"])
    model = load_with(kernels, directory, quantization=method)
    ours = logits_of(model, NativeBackend(kernels=kernels))
    in_torch = logits_of(replace(model, lean=rounding(model.lean)), SdpaBackend())
    assert (ours - in_torch).norm() < 0.01 * in_torch.norm()  # a number between two may be rounded either way


@pytest.mark.parametrize("method", ["int8", "int4"])
@pytest.mark.parametrize("name", ["", *SHAPES])
def test_weights_of_fewer_bits_give_a_row_the_same_bits_in_any_chunks(kernels, models, name, method):
    model, backend = load_with(kernels, models("llama", name), quantization=method), NativeBackend(kernels=kernels)
    whole = raw_logits(model, backend, chunks=(20,))
    for chunks in ((17, 1, 1, 1), (1, 19), (5, 15)):
        assert (raw_logits(model, backend, chunks=chunks) == whole).all()
