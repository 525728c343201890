"""What the pictures share: an SVG document on white, and words in it. Lengths are in pixels."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape


def document(width: float, height: float, parts: Iterable[str]) -> str:
    """Return the picture, made of its elements in the order in which they cover each other."""
    style = 'font-family="sans-serif" font-size="13"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {style}>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    return "\n".join([*head, *parts, "</svg>", ""])


def text(x: float, y: float, words: str, *, weight: str = "normal", anchor: str = "start") -> str:
    """Return words on this base line, which begin, have their middle or end at x."""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}" text-anchor="{anchor}">{escape(words)}</text>'
