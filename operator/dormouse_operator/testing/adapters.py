"""For tests: the adapters of a fake worker, whose files a test may change or lose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dormouse_api.v1 import worker_control_pb2 as pb
from dormouse_operator.model.adapters import Adapter, AdapterKind, HeldAdapter

_KINDS: Mapping[AdapterKind, pb.LoraKind.ValueType] = {
    "": pb.LORA_KIND_UNSPECIFIED,
    "LoRA": pb.LORA_KIND_LORA,
    "ActivatedLoRA": pb.LORA_KIND_ACTIVATED_LORA,
    "SoftPrompt": pb.LORA_KIND_SOFT_PROMPT,
}


@dataclass(slots=True)
class FakeAdapters:
    """What a worker was told, and what lies at paths."""

    # path → digest, or a reason with a space in it, or how much is fetched
    files: dict[str, str] = field(default_factory=dict)
    digest: str = ""
    num_told: int = 0
    wanted: tuple[Adapter, ...] = ()
    deaf: bool = False  # it forgets what it is told
    silent: bool = False  # it does not say what it holds

    def set(self, adapters: Sequence[Adapter], digest: str) -> None:
        """Take all that there shall be."""
        if self.deaf:
            return
        self.wanted, self.digest = tuple(adapters), digest
        self.num_told += 1

    def version(self, *, computes: bool) -> int:
        """Return a count that differs where `held` does."""
        return 2 * self.num_told + computes if self.num_told else 0

    def held(self, *, computes: bool) -> tuple[HeldAdapter, ...]:
        """Return what became of each."""
        return tuple(self._held(each, computes=computes) for each in self.wanted)

    def _held(self, adapter: Adapter, *, computes: bool) -> HeldAdapter:
        if not computes:
            return HeldAdapter(name=adapter.name, path=adapter.path, state="PENDING")
        found = self.files.get(adapter.path, f"{len(adapter.path):064x}")
        if " " not in found and adapter.digest not in {"", found}:
            found = f"the digest is {found}, asked for is {adapter.digest}"
        if found.endswith("are fetched"):
            return HeldAdapter(name=adapter.name, path=adapter.path, state="PENDING", progress=found)
        if " " in found:
            return HeldAdapter(name=adapter.name, path=adapter.path, state="FAILED", failure=found)
        return HeldAdapter(
            name=adapter.name, path=adapter.path, state="LOADED", digest=found, kind="LoRA", rank=8, slot_bytes=1 << 20
        )


def to_wanted(told: pb.LoraSpec) -> Adapter:
    """Return what came over the wire."""
    path = told.uri.removeprefix("file://")
    return Adapter(name=told.name, uri=told.uri, path=path, digest=told.digest, is_pinned=told.pinned, token=told.token)


def to_told(held: HeldAdapter) -> pb.LoraAdapter:
    """Return what goes over the wire."""
    told = pb.LoraAdapter(
        name=held.name,
        uri=held.path if held.path.startswith("hf://") else f"file://{held.path}",
        progress=held.progress,
        state=pb.LoraState.Value(f"LORA_STATE_{held.state}"),
        digest=held.digest,
        kind=_KINDS[held.kind],
        rank=held.rank,
        virtual_tokens=held.virtual_tokens,
        slot_bytes=held.slot_bytes,
    )
    if held.failure:
        told.failure.reason, told.failure.message = "NotLoaded", held.failure
    return told
