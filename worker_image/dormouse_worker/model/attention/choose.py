"""Which attention backends a model can use on a machine, and why not the others. Pure: no device is touched.

attention_backend = auto     the built-in ones that can, the likely fastest first; `measure` times them
                  = a name   that one, built in or of an entry point, or an error that says why it cannot
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.model.attention.interface import AttentionShape, BackendFactory, GraphSupport
from dormouse_worker.model.attention.machine import Machine
from dormouse_worker.model.attention.native import NativeBackend
from dormouse_worker.model.attention.sdpa import SdpaBackend
from dormouse_worker.model.attention.triton_backend import TritonBackend
from dormouse_worker.model.attention.varlen import VarlenBackend

AUTO = "auto"
REFERENCE = SdpaBackend.name
BUILT_IN: Mapping[str, BackendFactory] = MappingProxyType(  # in the order of preference: ours can be captured in graphs
    {
        TritonBackend.name: TritonBackend,
        VarlenBackend.name: VarlenBackend,
        NativeBackend.name: NativeBackend,
        REFERENCE: SdpaBackend,
    }
)


@dataclass(frozen=True, slots=True)
class Choice:
    """The backends that remain."""

    candidates: tuple[str, ...]  # each computes every layer; the preferred one first; never empty
    refusals: Mapping[str, str] = field(default_factory=dict)  # name → why it is not among them

    def __str__(self) -> str:
        reasons = "".join(f"; {name}: {reason}" for name, reason in self.refusals.items())
        return f"attention by {' or '.join(self.candidates)}{reasons}"


def choose(
    setting: str,
    machine: Machine,
    shapes: Sequence[AttentionShape],
    factories: Mapping[str, BackendFactory] = BUILT_IN,
    *,
    wants_graphs: bool = False,
    is_alone: bool = True,
) -> Choice:
    """Return the candidates for layers of these shapes. Raises InvalidSettings if the named backend is none.

    A named backend need not support graphs: who names it takes it without. With `auto` one that does is preferred.
    For one of several ranks only the preferred one remains: each would time them for itself, and they would differ.
    """
    if setting == AUTO:
        choice = _choose_among_built_in(machine, shapes, wants_graphs=wants_graphs)
        return choice if is_alone else _preferred(choice)
    require_known(setting, factories)
    refusal = refuse(factories[setting], machine, shapes)
    if refusal is not None:
        raise InvalidSettings(f"attention_backend is {setting}, which cannot compute this model: it {refusal}")
    return Choice((setting,))


def require_known(setting: str, factories: Mapping[str, BackendFactory]) -> None:
    """Raise InvalidSettings with the known names if this is none of them."""
    known = [AUTO, *factories]
    if setting not in known:
        raise InvalidSettings(f"attention_backend is {setting!r}; known are {', '.join(known)}")


def refuse(factory: BackendFactory, machine: Machine, shapes: Sequence[AttentionShape]) -> str | None:
    """Return why a backend cannot compute one of the layers; None = it can compute all."""
    if any(shape.is_rounded for shape in shapes) and not getattr(factory, "reads_rounded", False):
        return "does not read keys and values of 8 bits"
    return next((reason for shape in shapes if (reason := factory.supports(machine, shape)) is not None), None)


def _preferred(choice: Choice) -> Choice:
    first, *others = choice.candidates
    return Choice(
        (first,), {**choice.refusals, **dict.fromkeys(others, f"is not timed in a group, which takes {first}")}
    )


def _choose_among_built_in(machine: Machine, shapes: Sequence[AttentionShape], *, wants_graphs: bool) -> Choice:
    reasons = {name: refuse(factory, machine, shapes) for name, factory in BUILT_IN.items() if name != REFERENCE}
    refusals = {name: reason for name, reason in reasons.items() if reason is not None}
    able = [name for name in reasons if name not in refusals]
    if not able:
        return Choice((REFERENCE,), refusals)
    refusals[REFERENCE] = "is the reference, for where nothing else can"
    capturable = [name for name in able if BUILT_IN[name].graph_support is not GraphSupport.NEVER]
    if wants_graphs and capturable:
        others = dict.fromkeys(sorted(set(able) - set(capturable)), "cannot be captured in a CUDA graph")
        return Choice(tuple(capturable), refusals | others)
    return Choice(tuple(able), refusals)
