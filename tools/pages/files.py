"""docs/reference/files.md: every module with the first sentence of its docstring, folder by folder."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tools.bootstrap import ROOT
from tools.pages.tables import code, escaped, page, table

SOURCES = (
    ROOT / "api" / "dormouse_api",
    ROOT / "kube" / "dormouse_kube",
    ROOT / "operator" / "dormouse_operator",
    ROOT / "gateway" / "dormouse_gateway",
    ROOT / "worker_image" / "dormouse_worker",
    ROOT / "cli" / "dormouse_cli",
    ROOT / "localkube",
    ROOT / "tools",
    ROOT / "bench",
)
_GENERATED = re.compile(r"_pb2(_grpc)?\.py$")
_SENTENCE = re.compile(r".*?[.?](?=\s|$)", re.DOTALL)


def text() -> str:
    """Return the page."""
    about = "What each module owns, in its own words. What folders are for: [Architecture](../architecture.md)."
    return page("Files", about, *(_section(folder) for folder in folders()))


def folders() -> Iterator[Path]:
    """Yield every folder that holds modules, outer ones first."""
    for source in SOURCES:
        yield from sorted({path.parent for path in source.rglob("*.py")})


def modules(folder: Path) -> list[Path]:
    """Return the folder's own modules, without those that are generated and those that only mark a package."""
    found = (path for path in sorted(folder.glob("*.py")) if not _GENERATED.search(path.name))
    return [path for path in found if path.name != "__init__.py" or has_code(path)]


def has_code(path: Path) -> bool:
    """Return whether a module holds more than its docstring."""
    return len(ast.parse(path.read_text("utf-8")).body) > 1


def summary(path: Path) -> str:
    """Return the first sentence of a module's docstring, "" without one."""
    said = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    first = _SENTENCE.match(said.split("\n\n")[0])
    return " ".join((first.group() if first else said).split())


def _section(folder: Path) -> str:
    rows = [(code(path.name), escaped(summary(path))) for path in modules(folder)]
    if not rows:
        return ""
    mark = folder / "__init__.py"
    about = escaped(summary(mark)) if mark.is_file() and not has_code(mark) else ""
    return "\n\n".join(
        part for part in (f"## {folder.relative_to(ROOT)}/", about, table(("file", "what"), rows)) if part
    )
