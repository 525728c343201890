"""Attention backends by name: ours, those of installed packages, and what is wrong with a package by its name."""

import sys

import pytest
import torch

from dormouse_worker.common.errors import InsufficientMemory, InvalidSettings
from dormouse_worker.model.attention.interface import AttentionShape, BackendSizes, GraphSupport
from dormouse_worker.model.attention.machine import describe_machine
from dormouse_worker.model.attention.registry import GROUP, backend_factories
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.attention.select import select_backend

BACKEND = """
from dormouse_worker.model.attention.interface import EagerBackend

class Backend(EagerBackend):
    name = "flash"

    def __init__(self, sizes):
        self.sizes = sizes

    def plan(self, metadata, device):
        pass
"""
CPU = torch.device("cpu")
SHAPE = AttentionShape(4, 2, 16, 16, torch.float32, block_size=4)
SIZES = BackendSizes((SHAPE,), max_num_seqs=2, max_model_len=16)
MACHINE = describe_machine(CPU)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that lays out a package as pip would, importable while the test runs."""
    modules = []

    def lay_out(distribution, entry, *, code=BACKEND, name="flash"):
        site = tmp_path / distribution
        info = site / f"{distribution.replace('-', '_')}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {entry}\n")
        module = entry.partition(":")[0]
        (site / f"{module}.py").write_text(code)
        modules.append(module)
        monkeypatch.syspath_prepend(site)

    yield lay_out
    for module in modules:
        sys.modules.pop(module, None)


def make_backend(name):
    return select_backend(name, SIZES, CPU, max_num_batched_tokens=8, wants_graphs=False)


def test_ours_are_there_by_name():
    assert list(backend_factories()) == ["triton", "varlen", "native", "sdpa"]
    assert isinstance(make_backend("sdpa"), SdpaBackend)
    assert make_backend("auto").name in {"native", "sdpa"}  # as the kernels are compiled or not


def test_an_installed_package_adds_a_backend_and_is_imported_only_when_it_is_made(install):
    install("fast-attention", "fast_attention:Backend")
    factory = backend_factories()["flash"]
    assert "fast_attention" not in sys.modules
    assert factory(SIZES).sizes is SIZES
    assert factory.supports(MACHINE, SHAPE) is None
    assert factory.graph_support is GraphSupport.NEVER
    assert make_backend("flash") is not make_backend("flash")


def test_an_unknown_name_is_told_with_those_that_there_are(install):
    install("fast-attention", "fast_attention:Backend")
    with pytest.raises(InvalidSettings, match=r"attention_backend is 'flush'; known are auto, triton, .*flash"):
        make_backend("flush")


@pytest.mark.parametrize("name", ["flash", "sdpa"])
def test_two_that_offer_one_name_are_both_named(install, name):
    install("fast-attention", "fast_attention:Backend", name=name)
    if name == "flash":
        install("other-attention", "other_attention:Backend", name=name)
    with pytest.raises(InvalidSettings, match=f"attention backend '{name}' is offered twice, by ") as caught:
        backend_factories()
    origins = {"flash": ("fast-attention 1.2", "other-attention 1.2"), "sdpa": ("dormouse itself", "fast-attention")}
    assert [origin for origin in origins[name] if origin not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("entry", "code", "words"),
    [
        ("fast_broken:Backend", "import nothing_there", "loading fast_broken:Backend fails: ModuleNotFoundError"),
        ("fast_empty:Backend", "", "loading fast_empty:Backend fails: AttributeError"),
        ("fast_greedy:Backend", BACKEND + "    def __init__(self, sizes, more): ...", "making it fails: TypeError"),
        ("fast_wrong:make", "def make(): return 3", "fast_wrong:make is no backend's class: it has no name"),
    ],
)
def test_a_package_that_does_not_work_is_named_and_others_go_on(install, entry, code, words):
    install("fast-attention", entry, code=code)
    with pytest.raises(InvalidSettings, match=f"attention backend 'flash' of fast-attention 1.2: .*{words}"):
        make_backend("flash")
    assert make_backend("sdpa").name == "sdpa"


def test_a_backend_that_refuses_says_so_in_its_own_words(install):
    refusal = "    def __init__(self, sizes): raise InsufficientMemory('no room')"
    code = "from dormouse_worker.common.errors import InsufficientMemory" + BACKEND + refusal
    install("fast-attention", "fast_refusing:Backend", code=code)
    with pytest.raises(InsufficientMemory, match="no room"):
        make_backend("flash")
