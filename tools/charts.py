"""Write the generated files of the chart: copies of the CRDs Grafana dashboards, alerts; --check only compares."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

from tools.alerts import rule_file
from tools.bootstrap import ROOT
from tools.dashboards import DASHBOARDS, to_grafana

CHART_FILES = ROOT / "charts" / "dormouse" / "files"
KEEP = "helm.sh/resource-policy"


def kept_on_uninstall(crd: str) -> str:
    """Return a CRD's text with the annotation that lets it, and every object of its kind, outlive the release."""
    metadata = yaml.safe_load(crd)["metadata"]
    if metadata.get("annotations", {}).get(KEEP) == "keep":
        return crd
    line = "  annotations:\n" if "annotations" in metadata else "metadata:\n"
    added = f"    {KEEP}: keep\n" if "annotations" in metadata else f"  annotations:\n    {KEEP}: keep\n"
    head, found, tail = crd.partition(line)
    assert found, f"the CRD has no line {line!r} of its own"
    return head + line + added + tail


def generated(root: Path = ROOT) -> Mapping[str, str]:
    """Return path within the chart's files → content, for everything that is generated."""
    crds = {f"crds/{path.name}": kept_on_uninstall(path.read_text()) for path in sorted(root.glob("crds/*.yaml"))}
    boards = {
        f"dashboards/{board.uid}.json": json.dumps(to_grafana(board), indent=2, ensure_ascii=False) + "\n"
        for board in DASHBOARDS
    }
    alerts = yaml.safe_dump(rule_file(), sort_keys=False, allow_unicode=True, width=1000)
    return {**crds, **boards, "alerts/dormouse.yaml": alerts}


def differences(expected: Mapping[str, str], folder: Path) -> list[str]:
    """Return the paths, relative to `folder`, that are missing, differ, or should not be there."""
    present = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    return sorted(name for name in {*expected, *present} if expected.get(name) != present.get(name))


def write(expected: Mapping[str, str], folder: Path) -> None:
    """Make the folder hold exactly the expected files."""
    for name in differences(expected, folder):
        path = folder / name
        if name in expected:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(expected[name])
        else:
            path.unlink()


def main() -> None:
    """Write, or with --check say what differs and fail."""
    expected = generated()
    if "--check" not in sys.argv[1:]:
        write(expected, CHART_FILES)
        return
    if changed := differences(expected, CHART_FILES):
        names = ", ".join(str((CHART_FILES / name).relative_to(ROOT)) for name in changed)
        sys.exit(f"not what `make charts` makes: {names}")


if __name__ == "__main__":
    main()
