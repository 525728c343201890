"""Tables and lines of Markdown that hold whatever a description says."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

MADE = "<!-- Made by `python -m tools.pages`; not edited by hand. -->"


def page(title: str, *parts: str) -> str:
    """Return a whole page."""
    return "\n\n".join([f"# {title}", MADE, *(part for part in parts if part)]) + "\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, "" without rows."""
    lines = [_row(row) for row in rows]
    return "\n".join([_row(heads), f"|{'---|' * len(heads)}", *lines]) if lines else ""


def code(text: str) -> str:
    """Return text in code font, "" for none; a pipe in it does not end the cell."""
    if not text:
        return ""
    return f"<code>{escaped(text)}</code>" if "|" in text else f"`{text}`"


def escaped(text: str) -> str:
    """Return text that Markdown and HTML leave as it is, on one line."""
    known = html.escape(" ".join(text.split()), quote=False)
    return "".join(f"&#{ord(sign)};" if sign in "|*[]\\" else sign for sign in known)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
