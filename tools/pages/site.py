"""What MkDocs calls while it builds the site: links to files outside of docs/ lead to the repository.

MkDocs loads this file by its path (mkdocs.yml), so it imports nothing of ours.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)(?=[)#])")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return a page's text as the site shows it."""
    return with_links(markdown, page.file.src_uri, config["extra"]["source"])


def with_links(markdown: str, path: str, source: str) -> str:
    """Return the text of a page, whose path is relative to docs/, with links out of docs/ made absolute."""
    folder = posixpath.join("docs", posixpath.dirname(path))

    def absolute(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, found[1]))
        return found[1] if target.startswith("docs/") or target == "docs" else f"{source}/{target}"

    return LINK.sub(absolute, markdown)
