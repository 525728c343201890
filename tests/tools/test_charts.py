"""The generated files of the chart."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tools.charts import CHART_FILES, differences, generated, kept_on_uninstall, write

CRD = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata:\n  name: x\nspec:\n  a: 1\n"
ANNOTATED = CRD.replace("  name: x\n", "  annotations:\n    other: thing\n  name: x\n")


@pytest.mark.parametrize("crd", [CRD, ANNOTATED])
def test_the_copy_of_a_crd_differs_only_in_the_annotation_that_keeps_it(crd: str):
    copy = yaml.safe_load(kept_on_uninstall(crd))
    assert copy["metadata"]["annotations"].pop("helm.sh/resource-policy") == "keep"
    original = yaml.safe_load(crd)
    original["metadata"].setdefault("annotations", {})
    assert copy == original


def test_a_crd_that_is_kept_already_is_copied_as_it_is():
    kept = kept_on_uninstall(CRD)
    assert kept_on_uninstall(kept) == kept


def test_the_generated_files_are_what_they_are_made_from():
    assert differences(generated(), CHART_FILES) == [], "run: make charts"


def test_missing_changed_and_left_over_files_are_all_named(tmp_path: Path):
    for name in ("same", "changed", "left-over"):
        (tmp_path / name).write_text("old")
    expected = {"same": "old", "changed": "new", "folder/missing": "new"}
    assert differences(expected, tmp_path) == ["changed", "folder/missing", "left-over"]


def test_writing_makes_the_folder_hold_exactly_what_is_expected(tmp_path: Path):
    (tmp_path / "left-over").write_text("old")
    expected = {"crds/x.yaml": "new"}
    write(expected, tmp_path)
    assert differences(expected, tmp_path) == []
