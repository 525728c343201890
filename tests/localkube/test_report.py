"""Versions are read from what is pinned and installed, and the report shows every component."""

import pytest

from localkube import report
from localkube.report import Report
from localkube.start import State

GO_MOD = """module x

go 1.26.0

require github.com/coredns/coredns v1.14.7

require (
	go.etcd.io/etcd/server/v3 v3.6.13 // indirect
	helm.sh/helm/v3 v3.21.4
)

replace (
	k8s.io/api => k8s.io/api v0.36.3
)
"""


def test_pins_are_read_from_single_and_grouped_requirements():
    assert report.parse_go_mod(GO_MOD) == {
        "github.com/coredns/coredns": "v1.14.7",
        "go.etcd.io/etcd/server/v3": "v3.6.13",
        "helm.sh/helm/v3": "v3.21.4",
    }


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3", "1.6.20~ds1"),
        ("runc version 1.1.5+ds1\nspec: 1.0", "1.1.5+ds1"),
        ("containerd github.com/containerd/containerd/v2 v2.0.1 abc", "2.0.1"),
        ("nothing here", "unknown"),
    ],
)
def test_the_version_of_an_installed_program_is_read(text, version):
    assert report.parse_version(text) == version


def test_every_pinned_program_is_in_a_go_mod_of_ours():
    assert set(report.PINNED) <= set(report.versions())


def test_the_report_shows_what_is_down_and_where_everything_lies():
    states = (State("etcd", 7, ready=True), State("kubelet", None, ready=False), State("coredns", 8, ready=False))
    text = report.render(
        Report(is_healthy=False, owner="/clone", states=states, versions={"etcd": "v3"}, places={"logs": "/l"})
    )
    assert text.splitlines() == [
        "localkube is NOT healthy; started by /clone",
        "  etcd                     ready      pid 7",
        "  kubelet                  down",
        "  coredns                  not-ready  pid 8",
        "versions:",
        "  etcd                     v3",
        "paths:",
        "  logs                     /l",
    ]
