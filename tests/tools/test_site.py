"""The documentation site: every page is in it, every link leads somewhere, and nothing comes from another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

from tools.bootstrap import ROOT
from tools.pages.site import decisions, with_links

DOCS = ROOT / "docs"
SETTINGS: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))
OTHERS = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/extend/README.md"]
DOCUMENTS = [*(f"docs/{page}" for page in PAGES), *OTHERS]


def in_nav(part: Any) -> Iterator[str]:
    """Yield the pages that a part of the navigation names."""
    if isinstance(part, str):
        yield part
        return
    for below in part.values() if isinstance(part, dict) else part:
        yield from in_nav(below)


def without_code(text: str) -> str:
    """Return a document without its code, in which brackets and parentheses mean other things."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as MkDocs and hosts of repositories make them."""
    heads = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", head).strip().lower()) for head in heads}


def test_the_navigation_names_every_page_once_and_no_other():
    named = [*in_nav(SETTINGS["nav"]), *in_nav(decisions(DOCS))]
    assert sorted(named) == PAGES


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_to_a_file_and_to_a_heading_of_it(document: str):
    here = ROOT / document
    links = re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", without_code(here.read_text("utf-8")))
    for link in links:
        name, _, anchor = link.partition("#")
        target = here.parent / unquote(name) if name else here
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_links_out_of_the_pages_lead_to_the_repository():
    text = (
        "[a](../../charts/x.yaml) [b](../lifecycle.md#the-ladder) [c](https://x.y) [d](#here) ![e](../pictures/p.svg)"
    )
    shown = with_links(text, "how-to/page.md", "https://host/repo")
    assert shown == text.replace("../../charts/x.yaml", "https://host/repo/charts/x.yaml")


class Loaded(HTMLParser):
    """Collects what a browser fetches by itself to show a page."""

    def __init__(self) -> None:
        """Begin with nothing."""
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a script, picture or style sheet names."""
        named = dict(attrs)
        if tag in {"script", "img", "iframe", "source"} and (address := named.get("src")):
            self.addresses.append(address)
        if tag == "link" and named.get("rel") != "canonical" and (address := named.get("href")):
            self.addresses.append(address)


def test_it_builds_without_a_warning_and_fetches_nothing_from_other_hosts(tmp_path: Path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for path in (tmp_path / "site").rglob("*.html"):
        page = Loaded()
        page.feed(path.read_text("utf-8"))
        assert [address for address in page.addresses if re.match(r"(?:https?:)?//", address)] == [], path.name
