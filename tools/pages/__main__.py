"""`python -m tools.pages` writes the reference pages; with --check it only compares."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from tools import metric_catalogue
from tools.bootstrap import ROOT
from tools.charts import differences, write
from tools.pages import chart, commands, conditions, http, licences, programs, protos, resource, worker_protocol

FOLDER = ROOT / "docs" / "reference"


def pages() -> Mapping[str, str]:
    """Return file name → text of all pages."""
    return {
        **resource.pages(),
        "chart.md": chart.text(),
        "grpc.md": protos.text(),
        "cli.md": commands.text(),
        "conditions.md": conditions.text(),
        "programs.md": programs.text(),
        "licences.md": licences.text(),
        "http.md": http.text(),
        "worker-protocol.md": worker_protocol.text(),
        "metrics.md": metric_catalogue.page(metric_catalogue.catalogue()),
    }


def main() -> None:
    """Write, or say what differs and fail."""
    expected = pages()
    if "--check" not in sys.argv[1:]:
        FOLDER.mkdir(parents=True, exist_ok=True)
        write(expected, FOLDER)
    elif changed := differences(expected, FOLDER):
        sys.exit(f"not what `python -m tools.pages` makes: {', '.join(f'docs/reference/{name}' for name in changed)}")


if __name__ == "__main__":
    main()
