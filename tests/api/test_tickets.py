"""Tickets prove a role to one peer, for minutes; what one peer was shown proves nothing to another."""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dormouse_api.names import METADATA_TICKET, Role
from dormouse_api.testing_tickets import GATEWAY_SEED, OPERATOR_SEED, POD_UID, STRANGE_SEED, knows, proof, public_key
from dormouse_api.tickets import (
    LIFETIME_S,
    OPERATOR_TO_GATEWAY,
    SKEW_S,
    BadKey,
    SharedKey,
    SigningKey,
    TicketBook,
    TicketCheck,
    public_check,
    read_public_key,
    seeds_of,
)

BEGUN_S = time.time()  # when the tickets of the tables below were made
SOON_S = int(BEGUN_S) + LIFETIME_S


@dataclass
class Clock:
    """The wall clock, set by hand."""

    now_s: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class CountedKey:
    """Counts what it is asked to sign and to check."""

    count: int = 0

    def sign(self, said):
        self.count += 1
        return said[:1] * 32

    def check(self, signature, said):
        self.count += 1
        return signature == said[:1] * 32


def check_of(clock, *seeds, audience=POD_UID):
    keys = [public_check(SigningKey(seed, Role.OPERATOR).public) for seed in seeds]
    return TicketCheck([audience], {Role.OPERATOR: keys}, clock=clock)


def book_of(clock, *seeds):
    return TicketBook(Role.OPERATOR, [SigningKey(seed, Role.OPERATOR) for seed in seeds], clock=clock)


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.GATEWAY])
def test_a_ticket_proves_its_role_to_the_pod_that_it_is_made_out_to(role):
    proofs = knows(Role.OPERATOR, Role.GATEWAY)
    assert proofs.role_of(proof(role)) is role
    assert proofs.complaint(proof(role)) == ""
    assert proofs.role_of(((METADATA_TICKET, proof(role)[0][1].encode()), ("other", "x"))) is role


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        (None, ""),
        ((), ""),
        (proof(Role.OPERATOR, "another-pod"), "made out to 'another-pod'"),
        (proof(Role.OPERATOR, ""), "made out to ''"),
        (proof(Role.OPERATOR, seed=STRANGE_SEED), "not signed with a key of the role operator"),
        (proof(Role.OPERATOR, seed=GATEWAY_SEED), "not signed with a key of the role operator"),
        (((METADATA_TICKET, "operator"),), "cannot be read"),
        (((METADATA_TICKET, f"operator;{POD_UID};x;AAAA"),), "cannot be read"),
        (((METADATA_TICKET, f"emperor;{POD_UID};1;AAAA"),), "cannot be read"),
        (((METADATA_TICKET, f"operator;{POD_UID};{SOON_S};?"),), "cannot be read"),
        (((METADATA_TICKET, f"operator;{POD_UID};{SOON_S};AAAA"),), "not signed"),
        (((METADATA_TICKET, f"operator;{POD_UID};{SOON_S};{'A' * 600}"),), "cannot be read"),
        (((METADATA_TICKET, f"operator;{POD_UID};9999999999;AAAA"),), "360 s are allowed"),
        (((METADATA_TICKET, f"operator;{POD_UID};{'9' * 13};AAAA"),), "cannot be read"),
        (((METADATA_TICKET, f"operator;x;{'9' * 400};AAAA"),), "cannot be read"),
        (((METADATA_TICKET, "\u0661;a;b;c"),), "cannot be read"),
        (((METADATA_TICKET, proof(Role.OPERATOR)[0][1].replace("operator", "gateway")),), "not signed"),
        (proof(Role.OPERATOR) * 5, "5 tickets; allowed are 4"),
    ],
)
def test_anything_else_proves_nothing_and_says_why(metadata, why):
    proofs = knows(Role.OPERATOR, Role.GATEWAY, clock=lambda: BEGUN_S)
    assert proofs.role_of(metadata) is Role.CLIENT
    assert why in proofs.complaint(metadata)
    assert bool(why) == bool(proofs.complaint(metadata))


def test_tickets_of_two_roles_prove_neither():
    both = (*proof(Role.OPERATOR), *proof(Role.GATEWAY))
    assert knows(Role.OPERATOR, Role.GATEWAY).role_of(both) is Role.CLIENT


def test_a_server_without_a_key_or_without_a_name_takes_nobody():
    assert knows().role_of(proof(Role.OPERATOR)) is Role.CLIENT
    assert knows(Role.GATEWAY).role_of(proof(Role.OPERATOR)) is Role.CLIENT
    assert knows(Role.OPERATOR, audience="").role_of(proof(Role.OPERATOR, "")) is Role.CLIENT


def test_what_a_pod_was_shown_is_of_no_use_at_another_pod():
    """A fake worker is sent tickets that are made out to itself: shown elsewhere they prove nothing."""
    stolen = proof(Role.OPERATOR, "the-thief")
    assert knows(Role.OPERATOR, audience="the-thief").role_of(stolen) is Role.OPERATOR
    assert knows(Role.OPERATOR, audience="the-victim").role_of(stolen) is Role.CLIENT


def test_a_good_ticket_for_another_pod_is_astray_and_anything_else_is_not():
    """Who shows it was let in, and came to the wrong pod: he should not be told that his key is bad."""
    clock = Clock()
    here = check_of(clock, OPERATOR_SEED)
    astray = book_of(clock, OPERATOR_SEED).proof("another-pod")
    assert here.is_astray(astray)
    assert here.is_astray((*proof(Role.OPERATOR, "another-pod", STRANGE_SEED), *astray)), "a key that is rotated"
    assert here.role_of(astray) is Role.CLIENT
    strange = book_of(clock, STRANGE_SEED).proof("another-pod")
    of_another_role = proof(Role.GATEWAY, "another-pod")
    own = book_of(clock, OPERATOR_SEED).proof(POD_UID)
    for shown in ((), None, own, strange, of_another_role, astray * 5, ((METADATA_TICKET, "operator;x;1;?"),)):
        assert not here.is_astray(shown)
    clock.now_s += LIFETIME_S + SKEW_S + 1
    assert not here.is_astray(astray)


def test_what_a_pod_holds_signs_nothing():
    """The public key is all that a worker has of a role: as a seed it gives another key."""
    public = public_key(Role.OPERATOR)
    assert knows(Role.OPERATOR).role_of(proof(Role.OPERATOR, seed=public)) is Role.CLIENT


def test_a_ticket_ends_with_room_for_clocks_that_differ():
    clock = Clock()
    shown = book_of(clock, OPERATOR_SEED).proof(POD_UID)
    fresh, again = check_of(clock, OPERATOR_SEED), check_of(clock, OPERATOR_SEED)
    clock.now_s += LIFETIME_S + SKEW_S
    assert fresh.role_of(shown) is again.role_of(shown) is Role.OPERATOR
    clock.now_s += 2
    assert again.role_of(shown) is Role.CLIENT, "one that was checked before ends, too"
    assert fresh.complaint(shown) == "its ticket ended 302 s ago by this server's clock; 300 s are allowed"
    clock.now_s -= 3600
    assert fresh.role_of(book_of(clock, OPERATOR_SEED).proof(POD_UID)) is Role.OPERATOR


def test_a_ticket_that_lasts_longer_than_any_that_we_make_is_refused_however_well_signed():
    clock, ahead = Clock(), Clock()
    book, check = book_of(ahead, OPERATOR_SEED), check_of(clock, OPERATOR_SEED)
    ahead.now_s += SKEW_S
    shown = book.proof(POD_UID)
    assert check.role_of(shown) is Role.OPERATOR
    clock.now_s -= 1
    assert check.role_of(shown) is Role.CLIENT, "one that was checked before, too"
    words = "its ticket ends 361 s ahead by this server's clock; 360 s are allowed: do the clocks agree?"
    assert check.complaint(shown) == words
    ahead.now_s += 10 * 365 * 86400
    assert check.role_of(book.proof(POD_UID)) is Role.CLIENT


ENDS = st.one_of(st.just(str(SOON_S)), st.integers(0, 10**450).map(str), st.text(max_size=20))
SIGNATURES = st.one_of(st.binary(max_size=80).map(lambda raw: base64.urlsafe_b64encode(raw).decode()), st.text())
ALMOST = st.tuples(st.sampled_from(Role), st.one_of(st.just(POD_UID), st.text(max_size=9)), ENDS, SIGNATURES)


@given(st.one_of(st.text(), st.binary(), ALMOST.map(";".join)))
def test_nothing_that_is_shown_as_a_ticket_raises(shown):
    metadata = ((METADATA_TICKET, shown),)
    proofs = knows(Role.OPERATOR, Role.GATEWAY)
    assert proofs.role_of(metadata) is Role.CLIENT
    assert proofs.complaint(metadata)


def test_a_caller_keeps_a_ticket_for_half_its_time_and_signs_once():
    clock, key = Clock(), CountedKey()
    book = TicketBook(Role.OPERATOR, [key], clock=clock)
    first = book.proof(POD_UID)
    clock.now_s += LIFETIME_S / 2 - 1
    assert book.proof(POD_UID) is first
    clock.now_s += 1
    assert book.proof(POD_UID) != first
    assert key.count == 2
    clock.now_s -= 3600  # the clock was put right
    assert int(book.proof(POD_UID)[0][1].split(";")[2]) == int(clock.now_s) + LIFETIME_S


def test_a_server_checks_a_signature_once():
    clock, key = Clock(), CountedKey()
    book, check = TicketBook(Role.OPERATOR, [key], clock=clock), TicketCheck(["p"], {Role.OPERATOR: [key.check]})
    check = TicketCheck(["p"], {Role.OPERATOR: [key.check]}, clock=clock)
    shown = book.proof("p")
    assert [check.role_of(shown) for _ in range(5)] == [Role.OPERATOR] * 5
    assert key.count == 2


def test_what_either_side_keeps_is_bounded():
    clock, key = Clock(), CountedKey()
    book, check = TicketBook(Role.OPERATOR, [key], clock=clock), TicketCheck(["p"], {Role.OPERATOR: [key.check]})
    for number in range(5000):
        book.proof(f"pod-{number}")
    assert repr(book) == "TicketBook(operator, 1 keys, 4096 tickets)"
    check = TicketCheck(["p"], {Role.OPERATOR: [key.check]}, clock=clock)
    for _ in range(300):
        clock.now_s += LIFETIME_S
        assert check.role_of(book.proof("p")) is Role.OPERATOR
    assert len(check._known) == 256


def test_after_a_rotation_old_and_new_servers_know_the_caller_and_after_two_the_old_one_does_not():
    clock, seeds = Clock(), [f"seed number {number} of the operator, random" for number in range(3)]
    old, new = check_of(clock, seeds[0]), check_of(clock, seeds[1])
    rotated = book_of(clock, seeds[1], seeds[0]).proof(POD_UID)
    assert len(rotated) == 2
    assert old.role_of(rotated) is new.role_of(rotated) is Role.OPERATOR
    assert new.role_of(book_of(clock, seeds[0]).proof(POD_UID)) is Role.CLIENT
    twice = book_of(clock, seeds[2], seeds[1]).proof(POD_UID)
    assert (old.role_of(twice), new.role_of(twice)) == (Role.CLIENT, Role.OPERATOR)
    assert "not signed with a key" in old.complaint(twice)


def test_a_shared_key_proves_the_operator_to_a_gateway_and_gateways_to_nobody():
    shared = SharedKey(GATEWAY_SEED, OPERATOR_TO_GATEWAY)
    gateway = TicketCheck(["10.0.0.1"], {Role.OPERATOR: [shared.check]})
    assert gateway.role_of(TicketBook(Role.OPERATOR, [shared]).proof("10.0.0.1")) is Role.OPERATOR
    assert gateway.role_of(proof(Role.OPERATOR, "10.0.0.1")) is Role.CLIENT
    assert gateway.role_of(proof(Role.GATEWAY, "10.0.0.1")) is Role.CLIENT
    worker = knows(Role.OPERATOR, Role.GATEWAY)
    assert worker.role_of(TicketBook(Role.OPERATOR, [shared]).proof(POD_UID)) is Role.CLIENT


def test_keys_differ_by_role_and_purpose_and_stay_the_same():
    assert public_key(Role.OPERATOR, OPERATOR_SEED) != public_key(Role.GATEWAY, OPERATOR_SEED)
    assert SharedKey(GATEWAY_SEED, "a").sign(b"x") != SharedKey(GATEWAY_SEED, "b").sign(b"x")
    assert public_key(Role.OPERATOR, "a" * 48) == "TbwBWjhBYftn8yyLjBqEPdp6L8rrg2mYw9zLIm4y4Dk=", (
        "pods hold it for months"
    )


@pytest.mark.parametrize(("text", "words"), [("?", "no public key"), ("AAAA", "3 bytes"), ("\xe9", "no public key")])
def test_what_is_no_public_key_is_refused_with_its_value(text, words):
    with pytest.raises(BadKey, match=words):
        read_public_key(text)


def test_a_short_seed_is_refused_without_being_shown():
    for make in (lambda: SigningKey("hunter2", Role.OPERATOR), lambda: SharedKey("hunter2", "p")):
        with pytest.raises(BadKey, match="the seed has 7 characters; at least 32") as refused:
            make()
        assert "hunter2" not in str(refused.value)


def test_nothing_that_signs_is_shown():
    key = SigningKey(OPERATOR_SEED, Role.OPERATOR)
    assert repr(key) == f"SigningKey({key.public})"
    assert repr(SharedKey(OPERATOR_SEED, "p")) == "SharedKey()"
    assert repr(knows(Role.OPERATOR)) == "TicketCheck(operator)"


def test_a_book_without_keys_proves_nothing():
    book = TicketBook(Role.GATEWAY, ())
    assert not book
    assert book.proof(POD_UID) == ()


def test_seeds_are_those_that_there_are_each_once():
    assert seeds_of("a", "") == seeds_of("a", "a") == ("a",)
    assert seeds_of("b", "a") == ("b", "a")
