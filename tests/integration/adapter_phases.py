"""Where the load of an adapter may end, and the files that order it. Imports no torch: tests and workers read it."""

from __future__ import annotations

DIE, STOP, STOPPED = "die", "stop", "stopped"
PHASES = ("order", "configuration", "header", "matrices", "answer", "slot")  # in their order; the last by the first use
FRAIL = ("--worker-cls", "tests.integration.frail_adapter_worker.FrailAdapterWorker")
