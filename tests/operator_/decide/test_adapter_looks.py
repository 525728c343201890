"""What the status says of adapters of workers that are not asked."""

from __future__ import annotations

from dormouse_operator.decide.adapters import write
from dormouse_operator.model import Engine, RecordedStatus
from dormouse_operator.model.adapters import Adapter, RecordedAdapter
from dormouse_operator.testing.nouns import a_deployment, a_situation, a_worker

RECORDED = RecordedAdapter(name="old", uri="file:///old", state="Loaded", digest="d1", rank=8, slot_bytes=64)


def test_a_worker_at_rest_has_what_is_recorded_and_nothing_else():
    adapters = tuple(Adapter(name=name, uri=f"file:///{name}", path=f"/{name}") for name in ("new", "old"))
    engine, recorded = Engine(device="cpu", enable_lora=True), RecordedStatus(adapters=(RECORDED,))
    deployment = a_deployment(engine=engine, adapters=adapters, recorded=recorded)
    new, old = write(a_situation(a_worker(is_at_rest=True), deployment=deployment))
    assert (new["loadedReplicas"], old["loadedReplicas"], old["digest"]) == (0, 1, "d1")
