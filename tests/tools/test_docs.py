"""A document that names a file is right about it."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from tools.bootstrap import ROOT

FOLDERS = "api|kube|operator|gateway|worker_image|cli|crds|charts|localkube|tools|bench|tests"
NAMED = re.compile(rf"`((?:{FOLDERS})/[^`\s]*)`")
LINKED = re.compile(r"\]\((?!https?:)([^)#]+)\)")
PAGES = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))
DOCUMENTS = ["README.md", "ROADMAP.md", "CONTRIBUTING.md", *PAGES]
BRACES = re.compile(r"\{([^}]*)\}")


def expand(name: str) -> list[str]:
    """Return the names that a pattern with {a,b} stands for, without the test that may follow after `::`."""
    name = name.partition("::")[0].rstrip("…")
    choices = [part.split(",") for part in BRACES.findall(name)]
    pattern = BRACES.sub("{}", name)
    return [pattern.format(*choice) for choice in product(*choices)]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_a_document_names_exists(document):
    text = (ROOT / document).read_text("utf-8")
    folder = (ROOT / document).parent
    named = [ROOT / one for name in NAMED.findall(text) for one in expand(name)]
    linked = [folder / link for link in LINKED.findall(text)]
    missing = [str(path) for path in (*named, *linked) if not any(Path(path.parent).glob(path.name or "*"))]
    assert missing == []
