"""Text that is passed on while it comes, up to the marker of a section."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from dormouse_worker.front.answers.source import Source


def pass_on(source: Source, markers: Sequence[str], say: Callable[[str], None]) -> Generator[None, None, str]:
    """Say the text up to the first marker and read that; return it, "" at the end. Begins of markers are held."""
    while True:
        found = source.find(markers)
        if found is not None:
            before, marker = found
            say(source.take(before))
            source.take(len(marker))
            return marker
        say(source.take(len(source.unread) if source.is_ended else source.num_safe(markers)))
        if source.is_ended:
            return ""
        yield
