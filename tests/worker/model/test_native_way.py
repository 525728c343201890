"""Operations of modules by our kernels: as exact as torch's, and only where they are what kernels compute."""

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM

from dormouse_worker.common.host import Host
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.model.attention.native import NativeBackend
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.device.cpu import CpuDevice
from dormouse_worker.model.forward.choose import describe_path
from dormouse_worker.model.loader import load
from dormouse_worker.model.native_way import Most, NativeWay, kernels_for, on_torchs_threads
from dormouse_worker.model.testing import ARCHITECTURES
from dormouse_worker.native.library import load_kernels
from tests.worker.model.asked import Asked
from tests.worker.model.test_parity import BLOCK_SIZE, PROMPTS, make_engine, run

attend = functional.scaled_dot_product_attention


def draw(*shape, seed=0):
    """Return random numbers of 16 bits."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def draw_heads(pictures, heads, length, size):
    """Return query, key and value [B, H, L, D] as models have them: of rows whose heads lie behind each other."""
    return [draw(pictures, length, heads, size, seed=seed).transpose(1, 2) for seed in range(3)]


def natively(function, *parts, most=None, **options):
    """Return what is computed, and whether torch did it."""
    with Asked() as asked, NativeWay(load_kernels(), 2, most):
        result = function(*parts, **options)
    return result, bool(asked.named)


@pytest.mark.parametrize("shape", [(1, 3, 130, 64), (3, 2, 65, 72), (2, 1, 33, 80), (1, 2, 1, 16), (1, 1, 600, 240)])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_is_as_exact_as_torchs(shape, scale):
    """Every row sees all rows of its own picture, and no other's; heads of any size are whole."""
    parts = draw_heads(*shape)
    mixed, is_torchs = natively(attend, *parts, scale=scale)
    exact = attend(*(part.double() for part in parts), scale=scale)
    assert (is_torchs, mixed.shape, mixed.dtype) == (False, exact.shape, torch.bfloat16)
    torch.testing.assert_close(mixed.double(), exact, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize(
    ("function", "parts", "options"),
    [
        (functional.linear, (draw(2, 9, 40), draw(24, 40, seed=1), draw(24, seed=2)), {}),
        (functional.linear, (draw(40, 9).T, draw(24, 40, seed=1)), {}),
        (functional.layer_norm, (draw(2, 40, 9).transpose(1, 2), (40,), draw(40, seed=1), draw(40, seed=2), 1e-6), {}),
        (functional.layer_norm, (draw(5, 40), (40,), draw(40, seed=1)), {}),
        (functional.gelu, (draw(9, 40),), {}),
        (functional.gelu, (draw(40, 9).T,), {"approximate": "tanh"}),
        (functional.silu, (draw(9, 40),), {}),
    ],
)
def test_maps_norms_and_gates_are_as_exact_as_torchs(function, parts, options):
    """They are computed as float32 and rounded once, however what goes in lies in memory; it stays as it was."""
    before = parts[0].clone()
    found, is_torchs = natively(function, *parts, **options)
    exact = function(*(part.double() if isinstance(part, torch.Tensor) else part for part in parts), **options)
    assert (is_torchs, found.shape, found.dtype) == (False, exact.shape, torch.bfloat16)
    torch.testing.assert_close(found.double(), exact, rtol=2**-7, atol=2**-7)
    assert torch.equal(parts[0], before)


@pytest.mark.parametrize("most", [Most(products=1, attention=1), Most(products=1 << 14, attention=1 << 14)])
def test_steps_change_no_bit(most):
    """However short they are: a row at least."""
    heads, linear = draw_heads(2, 3, 50, 32), (draw(2, 50, 40), draw(24, 40, seed=1))
    assert torch.equal(natively(attend, *heads, most=most)[0], natively(attend, *heads)[0])
    assert torch.equal(natively(functional.linear, *linear, most=most)[0], natively(functional.linear, *linear)[0])


QUERY, KEY, VALUE = draw_heads(1, 2, 20, 16)
MASK = torch.zeros(1, 1, 20, 20, dtype=torch.bfloat16).index_fill(3, torch.tensor([3]), -torch.inf)
ROWS, WEIGHT = draw(3, 8), draw(5, 8, seed=1)


@pytest.mark.parametrize(
    ("function", "parts", "options"),
    [
        (attend, (QUERY, KEY, VALUE), {"attn_mask": MASK}),
        (attend, (QUERY, KEY, VALUE), {"is_causal": True}),
        (attend, (QUERY.float(), KEY.float(), VALUE.float()), {}),
        (attend, (QUERY[:, :, :7], KEY, VALUE), {}),
        (attend, (QUERY[0], KEY[0], VALUE[0]), {}),
        (attend, tuple(draw_heads(1, 1, 5, 256)), {}),
        (functional.linear, (ROWS.float(), WEIGHT.float()), {}),
        (functional.linear, (ROWS, WEIGHT[0]), {}),
        (functional.linear, (ROWS, draw(8, 5).T), {}),
        (functional.linear, (ROWS[:0], WEIGHT), {}),
        (functional.layer_norm, (ROWS, (8,)), {}),
        (functional.layer_norm, (ROWS, (3, 8), draw(3, 8)), {}),
        (functional.layer_norm, (draw(1, 65537), (65537,), draw(65537)), {}),
        (functional.gelu, (ROWS.float(),), {}),
        (functional.silu, (ROWS.clone(),), {"inplace": True}),
    ],
)
def test_all_else_is_torchs(function, parts, options):
    """Masks, other kinds of numbers and of shapes, queries that are not of the same rows, what is changed in place."""
    found, is_torchs = natively(function, *parts, **options)
    assert is_torchs
    assert torch.equal(found, function(*parts, **options))


def test_dropout_is_torchs():
    """No encoder has any when it is asked, and our kernels know none."""
    assert natively(attend, QUERY, KEY, VALUE, dropout_p=0.5)[1]


def test_sums_are_dense_rows():
    """Patches that a convolution left as columns would stay so behind every sum."""
    columns, rows = draw(1, 8, 5).transpose(1, 2), draw(1, 5, 8, seed=1)
    found, _ = natively(lambda: columns + rows)
    assert torch.equal(found, columns + rows)
    assert found.is_contiguous()
    assert not (columns + rows).is_contiguous()
    assert torch.equal(natively(lambda: rows + 1)[0], rows + 1)
    assert torch.equal(natively(lambda: torch.add(rows, columns, alpha=2))[0], torch.add(rows, columns, alpha=2))


def test_torchs_threads_compute_nothing_but_what_is_large():
    """Others look for work for milliseconds, and would share their cores with ours."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with Asked() as asked, NativeWay(load_kernels(), 2):
            functional.linear(ROWS, WEIGHT)
            attend(QUERY, KEY, VALUE, attn_mask=MASK)
            ROWS.float().mean()
        assert asked.threads == {(False, 1), (True, 2)}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("device", "dtype", "backend", "said", "is_ours"),
    [
        ("cpu", torch.bfloat16, "auto", "flags : avx512f avx512_bf16", True),
        ("cpu", torch.bfloat16, "native", None, True),
        ("cpu", torch.bfloat16, "auto", "flags : avx512_bf16 amx_bf16 amx_tile", False),
        ("cpu", torch.bfloat16, "sdpa", "flags : avx512_bf16", False),
        ("cpu", torch.float32, "auto", "flags : avx512_bf16", False),
        ("meta", torch.bfloat16, "auto", "flags : avx512_bf16", False),
    ],
)
def test_kernels_compute_where_they_are_faster(tmp_path, device, dtype, backend, said, is_ours):
    """They multiply bfloat16, and nothing on the processor does so better."""
    if said:
        (tmp_path / "cpuinfo").write_text(said)
    found = kernels_for(backend, torch.device(device), dtype, tmp_path / "cpuinfo")
    assert (found is not None) == (is_ours and load_kernels().multiplies_bfloat16)


def test_who_describes_a_path_changes_no_threads(tiny_model):
    """Only who computes has the kernels use as many as torch."""
    model = load(EngineSettings(model=str(tiny_model("gemma2")), dtype="bfloat16"), CpuDevice(Host()))
    kernels = load_kernels()
    kernels.set_num_threads(torch.get_num_threads() + 1)
    describe_path(model, NativeBackend.name)
    assert kernels.num_threads == torch.get_num_threads() + 1
    assert on_torchs_threads(kernels).num_threads == torch.get_num_threads()
    assert on_torchs_threads(None) is None


ENDS = torch.tensor([2, 2, 9], dtype=torch.int32)  # the second group has no rows


def test_rows_are_multiplied_with_the_map_of_their_group():
    """As experts call it: maps [outputs, columns] that are looked at the other way round."""
    rows, maps = draw(9, 40), draw(3, 24, 40, seed=1)
    found, is_torchs = natively(torch._grouped_mm, rows, maps.transpose(1, 2), offs=ENDS)
    groups = torch.tensor([0, 0, *[2] * 7])
    exact = torch.einsum("tk,tnk->tn", rows.double(), maps.double()[groups])
    assert (is_torchs, found.shape, found.dtype) == (False, exact.shape, torch.bfloat16)
    torch.testing.assert_close(found.double(), exact, rtol=2**-7, atol=2**-7)
    assert natively(torch._grouped_mm, rows, draw(3, 40, 24), offs=ENDS)[1], "maps lie the other way"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_are_as_exact_as_torchs(tiny_model, architecture):
    """Of every architecture, beside those of the same weights in float32."""
    module, exact = (
        AutoModelForCausalLM.from_pretrained(tiny_model(architecture), dtype=dtype).eval()
        for dtype in (torch.bfloat16, torch.float32)
    )
    for rounded, part in zip(module.parameters(), exact.parameters(), strict=True):
        part.data.copy_(rounded.data)
    tokens = torch.tensor([[(i * i * 7 + 3) % 250 for i in range(30)]])
    with torch.inference_mode():
        wanted, by_torch = exact(tokens).logits, module(tokens).logits
        with Asked() as asked, NativeWay(load_kernels(), 2):
            ours = module(tokens).logits
    assert functional.linear not in asked.of_halves
    error, their_error = ((logits.float() - wanted).abs().mean() for logits in (ours, by_torch))
    assert error <= 1.5 * their_error


@pytest.mark.parametrize("backend", [NativeBackend, SdpaBackend])
def test_passes_of_modules_are_computed_by_the_kernels_that_attend(tiny_model, backend):
    """Together they say what each says alone: rows know nothing of each other."""
    settings = EngineSettings(model=str(tiny_model("gemma2")), block_size=BLOCK_SIZE, dtype="bfloat16")
    model = load(settings, CpuDevice(Host()))
    is_ours = kernels_for(backend.name, torch.device("cpu"), torch.bfloat16) is not None
    with Asked() as asked:
        together = run(make_engine(model, backend=backend()), PROMPTS)
    assert (functional.linear in asked.named) == (not is_ours)
    assert (", maps " in describe_path(model, backend.name)) == is_ours
    if is_ours:
        for name, prompt in PROMPTS.items():
            assert run(make_engine(model, backend=backend()), {name: prompt})[name] == together[name]
