"""The table as text."""

from __future__ import annotations

import pytest

from localkube import nft
from localkube.policies import Allowance, Block, Guard
from tests.localkube.cases import A, B, guards_of, raw_policy

EMPTY = """\
add table inet localkube-policies
delete table inet localkube-policies
table inet localkube-policies {
  set itself {
    type ipv4_addr . ipv4_addr
  }
  map ingress {
    type ipv4_addr : verdict
  }
  map egress {
    type ipv4_addr : verdict
  }
  chain forward {
    type filter hook forward priority filter; policy accept
    ct state established,related accept
    meta nfproto ipv6 iifname "dormouse0" oifname "dormouse0" drop
    ip saddr . ip daddr @itself accept
    ip saddr vmap @egress
    ip saddr { 10.244.0.1, 10.244.0.2 } accept
    ip daddr vmap @ingress
  }
  chain input {
    type filter hook input priority filter; policy accept
    ct state established,related accept
    ip saddr vmap @egress
  }
}
"""


def test_without_guards_a_table_replaces_the_last_one_and_drops_nothing():
    assert nft.table([]) == EMPTY


@pytest.mark.parametrize(
    ("allowance", "rule"),
    [
        (Allowance(None), "return"),
        (Allowance(None, "TCP"), "meta l4proto tcp return"),
        (Allowance(None, "UDP", (53, 53)), "udp dport 53 return"),
        (Allowance(None, "SCTP", (1, 9)), "sctp dport 1-9 return"),
        (Allowance(("10.0.0.1", "10.0.0.2")), "ip saddr { 10.0.0.1, 10.0.0.2 } return"),
        (Allowance(Block("10.0.0.0/8"), "TCP", (1, 1)), "ip saddr 10.0.0.0/8 tcp dport 1 return"),
        (
            Allowance(Block("10.0.0.0/8", ("10.1.0.0/16", "10.2.0.0/16", "fd00::/8"))),
            "ip saddr 10.0.0.0/8 ip saddr != 10.1.0.0/16 ip saddr != 10.2.0.0/16 return",
        ),
    ],
)
def test_each_allowance_is_a_rule_and_whatever_has_none_is_dropped(allowance, rule):
    text = nft.table([Guard("Ingress", "10.0.0.9", (allowance,))])
    assert f"  chain ingress-0 {{\n    {rule}\n    counter drop\n  }}\n" in text
    assert "elements = { 10.0.0.9 : jump ingress-0 }" in text


def test_what_goes_out_is_judged_by_where_it_goes():
    text = nft.table([Guard("Egress", "10.0.0.9", (Allowance(Block("0.0.0.0/0"), "TCP", (443, 443)),))])
    assert "    ip daddr 0.0.0.0/0 tcp dport 443 return\n" in text


def test_pods_that_may_do_the_same_share_a_chain():
    text = nft.table(guards_of(raw_policy(ingress=[{"from": [{"podSelector": {}}]}], egress=[])))
    assert text.count("counter drop") == 2
    assert f"{A.address} : jump ingress-0, {B.address} : jump ingress-0" in text
    assert f"{A.address} . {A.address}, {B.address} . {B.address}" in text
