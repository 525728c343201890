"""Frames between pods of one node are shown to the policies, or it is said that they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from localkube import host

PRESENT = "net/bridge/bridge-nf-call-iptables"


def sysctls(root: Path, value: str | None) -> Path:
    """Make a kernel's sysctls, with or without br_netfilter."""
    for name in ("net/ipv4/ip_forward", "vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("0\n")
    if value is not None:
        load(root, value)
    return root


def load(root: Path, value: str) -> None:
    (root / PRESENT).parent.mkdir(parents=True)
    (root / PRESENT).write_text(f"{value}\n")


@pytest.mark.parametrize(
    ("before", "said"), [("1", []), ("0", ["setting sysctl net.bridge.bridge-nf-call-iptables=1"])]
)
def test_what_is_off_is_set_and_what_is_on_is_left(tmp_path: Path, before: str, said: list[str]):
    root, words = sysctls(tmp_path, before), list[str]()
    host.ensure_bridge_filter(words.append, root=root, load_module=lambda _: pytest.fail("it is there"))
    assert host.read_sysctls(root)[host.BRIDGE_FILTER] == "1"
    assert [word.partition(" (")[0] for word in words] == said
    assert all("undo: `python -m localkube down`" in word for word in words)


def test_a_module_is_loaded_where_it_is_one(tmp_path: Path):
    root, words = sysctls(tmp_path, None), list[str]()
    host.ensure_bridge_filter(words.append, root=root, load_module=lambda _: load(root, "1"))
    assert host.read_sysctls(root)[host.BRIDGE_FILTER] == "1"
    assert words == []


def test_a_kernel_without_it_is_named_and_the_cluster_comes_up_all_the_same(tmp_path: Path):
    root, words = sysctls(tmp_path, None), list[str]()
    host.ensure_bridge_filter(words.append, root=root, load_module=lambda _: None)
    assert host.BRIDGE_FILTER not in host.read_sysctls(root)
    [word] = words
    assert "no br_netfilter" in word
