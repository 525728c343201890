"""What MkDocs calls while it builds the site: links out of docs/ lead to the repository, decisions are listed.

MkDocs loads this file by its path (mkdocs.yml), so it imports nothing of ours.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)(?=[)#])")


def on_config(config: Any) -> Any:
    """Add the decisions, by their headings, to the end of the navigation."""
    config["nav"][-1]["Design"].append({"Decisions": decisions(Path(config["docs_dir"]))})
    return config


def decisions(docs: Path) -> list[dict[str, str]]:
    """Return title → page of every decision in order of their numbers."""
    pages = sorted((docs / "decisions").glob("*.md"))
    return [{page.read_text("utf-8").partition("\n")[0].lstrip("# "): f"decisions/{page.name}"} for page in pages]


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
