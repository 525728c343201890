"""Imports transformers without what no worker uses of it: a third of the time and of the memory that importing takes.

Left out are torch's compiler (for `compile_sizes` alone), torch's distributed tensors (our ranks share out by
themselves), flexible attention (attention is ours) and quantizers. All are things that transformers is prepared to live
without; each is still imported by whoever asks torch for it. Knows no model.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

LEFT_OUT = ("is_torch_distributed_available", "is_torch_flex_attn_available", "is_torchao_available")
COMPILER = "torch._dynamo"
FOR_MASKS = f"{COMPILER}._trace_wrapped_higher_order_op"  # a class that transformers takes from the compiler's package


def import_slim() -> None:
    """Import torch and transformers so; nothing happens if transformers is there already. Not for quantized models."""
    if "transformers" in sys.modules:
        return
    importlib.import_module("torch")
    _load_alone(FOR_MASKS)
    _leave_out(importlib.import_module("transformers.utils.import_utils"))
    with without_compiler():
        importlib.import_module("transformers.modeling_utils")
        importlib.import_module("transformers.masking_utils")


@contextmanager
def without_compiler() -> Iterator[None]:
    """Let nobody import the compiler in the block only to mark functions for it; if it is there, they are marked."""
    if COMPILER in sys.modules:
        yield
        return
    import torch

    marks = _Marks(COMPILER)
    try:
        sys.modules[COMPILER] = marks
        with ExitStack() as stack:
            for owner, name, value in (
                (torch, "_dynamo", marks),
                (torch.compiler, "disable", marks.disable),
                (torch.compiler, "allow_in_graph", marks.allow_in_graph),
            ):
                stack.enter_context(replaced(owner, name, value))
            yield
    finally:
        if sys.modules.get(COMPILER) is marks:
            del sys.modules[COMPILER]


class _Marks(ModuleType):
    """Stands for the compiler while functions are marked for it, which says nothing to whoever compiles nothing."""

    @staticmethod
    def disable(function: Any = None, *_: Any, **__: Any) -> Any:
        """Return it as it is; without one, return what decorates so."""
        return _Marks.disable if function is None else function

    allow_in_graph = disallow_in_graph = assume_constant_result = disable

    def __getattr__(self, name: str) -> Any:
        """Return what the compiler itself has under any other name: it is needed after all."""
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if sys.modules.get(COMPILER) is self:
            del sys.modules[COMPILER]
        return getattr(importlib.import_module(COMPILER), name)


def _load_alone(name: str) -> None:
    """Load a module of a package without the package; whoever imports that later finds the module loaded."""
    package, _, leaf = name.rpartition(".")
    found = importlib.util.find_spec(package)
    file = Path(found.origin).parent / f"{leaf}.py" if found and found.origin else None
    if name in sys.modules or file is None or not file.is_file():  # another torch: then it comes as a whole
        return
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None, "it is a Python file"
    assert spec.loader is not None, "it is a Python file"
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _leave_out(import_utils: Any) -> None:
    """Let transformers find these absent: what it looks for once, without torch, it remembers."""
    with replaced(import_utils, "is_torch_available", lambda: False):
        for name in LEFT_OUT:
            getattr(import_utils, name, bool)()


@contextmanager
def replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    """Let the owner have this under a name, and what it had, or nothing, after the block."""
    had = name in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
