"""What the front's HTTP port answers: metrics, and the kubelet's two questions. Owns nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dormouse_worker.common.ipc import State
from dormouse_worker.front.api.http import METRICS_TYPE, Answer
from dormouse_worker.front.certificate import Certificate
from dormouse_worker.front.worker import Worker

_RESTING = frozenset({State.ASLEEP, State.WAKING, State.STANDBY})


class Probes:
    """Answers for one worker."""

    def __init__(self, worker: Worker, certificate: Certificate, *, is_standalone: bool) -> None:
        """A standalone worker has no readiness gate."""
        self._worker = worker
        self._certificate = certificate
        self._is_standalone = is_standalone

    @property
    def paths(self) -> Mapping[str, Callable[[], Answer]]:
        """Return who answers what."""
        return {"/metrics": self.metrics, "/healthz": self.healthz, "/readyz": self.readyz}

    def metrics(self) -> Answer:
        """Answer Prometheus."""
        return Answer(200, self._worker.metrics.text() + self._certificate.text(), METRICS_TYPE)

    def healthz(self) -> Answer:
        """Answer whether the container has to start anew."""
        if self._worker.is_healthy:
            return Answer(200, b"ok\n")
        return Answer(503, b"the engine died or takes too long\n")

    def readyz(self) -> Answer:
        """Answer the kubelet: asleep, too, where an operator's readiness gate keeps requests away.

        A probe that fails for hours is an Event a minute that tells nobody anything.
        """
        worker, state = self._worker, self._worker.board.state
        if state is State.READY and not worker.is_ending:
            return Answer(200, b"ok\n")
        if state in _RESTING and not (self._is_standalone or worker.is_ending):
            return Answer(200, f"{worker.words}; the readiness gate is closed\n".encode())
        return Answer(503, f"{worker.words}\n".encode())
