"""The fields of `EngineSettings` as flags and checks read them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from dormouse_worker.common.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class Knob:
    """One field: what it is called, what may stand in it, what stands there if nobody says anything."""

    name: str
    hint: Any  # the annotation, with its `msgspec.Meta`
    default: Any  # msgspec.NODEFAULT = it has to be said

    @property
    def flag(self) -> str:
        """Return the flag; sizes leave the unit out, for they may be said in several."""
        return f"--{self.name.removesuffix('_bytes').replace('_', '-')}"

    @property
    def meta(self) -> msgspec.Meta:
        """Return bounds, help, and the name of a value in `extra`."""
        meta = self.hint.__metadata__[0]
        assert isinstance(meta, msgspec.Meta), self.name
        return meta

    @property
    def kind(self) -> Any:
        """Return the type without its bounds."""
        bare = self.hint.__origin__
        return get_origin(bare) or bare

    @property
    def choices(self) -> tuple[Any, ...]:
        """Return all that is allowed, () where bounds say it."""
        return get_args(self.hint.__origin__) if self.kind is Literal else ()

    def why_not(self, value: object) -> str:
        """Return why the field cannot hold a value, with what it may hold; "" = it can."""
        try:
            msgspec.convert(value, self.hint)
        except msgspec.ValidationError as error:
            allowed = f"allowed are {', '.join(map(str, self.choices))}" if self.choices else str(error).lower()
            return f"{self.name} is {value!r}; {allowed}"
        return ""


def _knobs() -> Mapping[str, Knob]:
    hints = get_type_hints(EngineSettings, include_extras=True)
    fields = msgspec.structs.fields(EngineSettings)
    return MappingProxyType({field.name: Knob(field.name, hints[field.name], field.default) for field in fields})


KNOBS = _knobs()
