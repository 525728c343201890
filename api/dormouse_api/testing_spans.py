"""Spans as tests look at them: kept in memory, found by name."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import Tracer


class KeptSpans:
    """What was traced so far."""

    def __init__(self, root: Sampler = ALWAYS_ON) -> None:
        """Take what decides about requests whose client did not."""
        self._exporter = InMemorySpanExporter()
        self._provider = TracerProvider(ParentBased(root), shutdown_on_exit=False)
        self._provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def __repr__(self) -> str:
        """Show the names."""
        return f"KeptSpans({[span.name for span in self.all()]})"

    @property
    def tracer(self) -> Tracer:
        """Return what makes spans."""
        return self._provider.get_tracer("test")

    def all(self) -> Sequence[ReadableSpan]:
        """Return every span that ended, in that order."""
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        """Return those of this name."""
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """Return the only one of this name. Raises ValueError."""
        (span,) = self.named(name)
        return span


def span_id(span: ReadableSpan) -> int:
    """Return the span's id."""
    assert span.context
    return int(span.context.span_id)


def parent_id(span: ReadableSpan) -> int | None:
    """Return its parent's id, None if it has none."""
    return span.parent.span_id if span.parent else None


def linked_ids(span: ReadableSpan) -> list[int]:
    """Return what it links to."""
    return [link.context.span_id for link in span.links]
