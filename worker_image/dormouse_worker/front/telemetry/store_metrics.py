"""What became of blocks between the cache and the store that outlives the engine. Series only where there is one."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from dormouse_worker.common.ipc import StoreCounts


class StoreMetrics:
    """Owns the metrics of one front's store."""

    def __init__(self, model_name: str, registry: CollectorRegistry) -> None:
        names = ("model_name",)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"dormouse_kv_store_{name}", text, names, registry=registry)

        self._model_name = model_name
        self._found = counter("found", "Blocks in the store that others wrote while this worker ran.")
        self._fetched = counter("fetched", "Of the hits: blocks that another worker sent.")
        self._hits = counter("hits", "Blocks read from the store in place of being computed.")
        self._read = counter("read_bytes", "Bytes read from the store.")
        self._writes = counter("writes", "Blocks written to the store.")
        self._written = counter("written_bytes", "Bytes written to the store.")
        self._handed_over = counter("handed_over", "Blocks of streams that were to go on at another worker.")
        self._misses = Counter(
            "dormouse_kv_store_misses",
            "Blocks of the store that were not read, or not kept, by reason.",
            ("model_name", "reason"),
            registry=registry,
        )
        self._bytes = Gauge("dormouse_kv_store_bytes", "Bytes that the store holds.", names, registry=registry)

    def __repr__(self) -> str:
        return f"StoreMetrics({self._model_name})"

    def on_counts(self, counts: StoreCounts) -> None:
        """Take what was counted since the last time."""
        name = self._model_name
        self._found.labels(name).inc(counts.found)
        self._fetched.labels(name).inc(counts.fetched)
        self._hits.labels(name).inc(counts.hits)
        self._read.labels(name).inc(counts.read_bytes)
        self._writes.labels(name).inc(counts.writes)
        self._written.labels(name).inc(counts.written_bytes)
        self._handed_over.labels(name).inc(counts.handed_over)
        for reason, number in counts.misses.items():
            self._misses.labels(name, reason).inc(number)
        self._bytes.labels(name).set(counts.stored_bytes)
