"""What /metrics shows of each deployment. Kept as lines: a gauge object of each would cost a kilobyte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from dormouse_operator.decide.findings import Findings
from dormouse_operator.decide.phases import REPLICA_PHASES, Phase, replica_phase
from dormouse_operator.decide.situation import Situation
from dormouse_operator.model import Key

Family = Literal[
    "dormouse_deployment_ready",
    "dormouse_replicas",
    "dormouse_spare_replicas",
    "dormouse_kv_blocks_agreed",
    "dormouse_kv_blocks",
    "dormouse_gpu_residual_bytes",
    "dormouse_adapters",
]

_HELP: Mapping[Family, str] = {
    "dormouse_deployment_ready": "1 while the condition Ready is True, else 0; it is while asleep",
    "dormouse_replicas": "Replicas by state",
    "dormouse_spare_replicas": "Pods of spec.lifecycle.spares that wait in STANDBY",
    "dormouse_kv_blocks_agreed": "KV-cache blocks that each replica holds",
    "dormouse_kv_blocks": "Blocks that a rank reported",
    "dormouse_gpu_residual_bytes": "Memory that a rank still holds asleep",
    "dormouse_adapters": "LoRA adapters by state, of spec.adapters and of InferenceAdapters",
}


class DeploymentMetrics:
    """The lines of every deployment, by family of metrics."""

    def __init__(self) -> None:
        """Show nothing."""
        self._lines: dict[Key, dict[Family, bytes]] = {}

    def __repr__(self) -> str:
        """Show of how many deployments it tells."""
        return f"DeploymentMetrics({len(self._lines)} deployments)"

    def show(self, situation: Situation, findings: Findings, status: Mapping[str, Any]) -> None:
        """Show the deployment as it is now; what it showed before and does not now, disappears."""
        lines: dict[Family, bytes] = {}
        for family, labels, value in _values(situation, findings, status):
            lines[family] = lines.get(family, b"") + _line(family, labels, value)
        self._lines[situation.deployment.key] = lines

    def forget(self, key: Key) -> None:
        """Show nothing of a deployment that is gone."""
        self._lines.pop(key, None)

    def render(self) -> bytes:
        """Return the text for Prometheus: the lines of a family stand together."""
        parts: list[bytes] = []
        for family, words in _HELP.items():
            parts.append(f"# HELP {family} {words}\n# TYPE {family} gauge\n".encode())
            parts += [lines[family] for lines in self._lines.values() if family in lines]
        return b"".join(parts)


def _line(family: Family, labels: Mapping[str, str], value: float) -> bytes:
    """Return one sample; none of our labels needs escaping, as they are names that Kubernetes allows."""
    text = ",".join(f'{name}="{labels[name]}"' for name in sorted(labels))
    return f"{family}{{{text}}} {float(value)}\n".encode()


def _values(
    situation: Situation, findings: Findings, status: Mapping[str, Any]
) -> Iterator[tuple[Family, Mapping[str, str], float]]:
    """Yield each sample."""
    key = situation.deployment.key
    labels = {"namespace": key.namespace, "deployment": key.name}
    is_ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", ()))
    yield "dormouse_deployment_ready", labels, is_ready
    for state, count in _count_states(situation, findings).items():
        yield "dormouse_replicas", {**labels, "state": state}, count
    if "spareReplicas" in status:
        yield "dormouse_spare_replicas", labels, status["spareReplicas"]
    cache = status.get("kvCache", {})
    if "numGpuBlocks" in cache:
        yield "dormouse_kv_blocks_agreed", labels, cache["numGpuBlocks"]
    for rank in cache.get("ranks", ()):
        of_rank = {**labels, "pod": rank["pod"], "rank": str(rank["rank"])}
        yield "dormouse_kv_blocks", of_rank, rank["numGpuBlocks"]
        yield "dormouse_gpu_residual_bytes", of_rank, rank.get("residualBytes", 0)
    for state, count in Counter(each["state"] for each in status.get("adapters", ())).items():
        yield "dormouse_adapters", {**labels, "state": state}, count


def _count_states(situation: Situation, findings: Findings) -> Counter[str]:
    """Return how many replicas are in each phase; those without a pod are pending. Phases without replicas show 0."""
    phases = [replica_phase(situation, findings, pod) for pod in situation.replicas]
    pending = [Phase.PENDING] * (situation.wanted_replicas - len(phases))
    counts = Counter({phase.lower(): 0 for phase in REPLICA_PHASES})
    counts.update(phase.lower() for phase in [*phases, *pending])
    return counts
