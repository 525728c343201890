"""Who computes prompts, and what that is not combined with, refused by name. Pure. The schema refuses the same."""

from __future__ import annotations

from dormouse_operator.model.roles import Roles
from dormouse_operator.parse.values import Raw, SpecError


def parse_roles(spec: Raw) -> Roles | None:
    """Return the roles, None where all workers do the same. Raises SpecError."""
    if "roles" not in spec:
        return None
    count = (spec["roles"].get("prefill") or {}).get("replicas")
    if count is None:
        raise SpecError("spec.roles.prefill.replicas is missing; it is how many of spec.replicas compute prompts")
    if "kvStore" not in (spec.get("engine") or {}):
        raise SpecError("spec.roles needs spec.engine.kvStore, from which workers that decode are sent blocks")
    if (spec.get("serving") or {}).get("inferencePool"):
        raise SpecError("spec.roles needs spec.serving.inferencePool false, as others' gateways ask for one worker")
    counts = {"replicas": spec.get("replicas", 1)}
    if "scaling" in spec:
        counts["scaling.minReplicas"] = spec["scaling"].get("minReplicas", 1)
    for field, replicas in counts.items():
        if 0 < replicas <= count:
            least = f"the least is one more than spec.roles.prefill.replicas, {count}, so that somebody decodes"
            raise SpecError(f"spec.{field} is {replicas}; {least}")
    return Roles(count)
