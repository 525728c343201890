"""What can end: the least fixpoint of clauses "this ends if all of these do". Pure, and linear in the clauses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

Clause = tuple[Hashable, Sequence[Hashable]]  # what ends, if all of these do


def what_ends(clauses: Iterable[Clause]) -> set[Hashable]:
    """Return the heads that end. A body's name without a clause never does.

    Source: W. F. Dowling, J. H. Gallier, Linear-time algorithms for testing the satisfiability of Horn formulae, 1984.
    """
    needed_by: defaultdict[Hashable, list[int]] = defaultdict(list)
    heads: list[Hashable] = []
    num_open: list[int] = []  # of each clause, what is not known to end
    for number, (head, body) in enumerate(clauses):
        heads.append(head)
        num_open.append(len(body))
        for name in body:
            needed_by[name].append(number)
    ended: set[Hashable] = set()
    ready = [head for head, left in zip(heads, num_open, strict=True) if not left]
    while ready:
        head = ready.pop()
        if head in ended:
            continue
        ended.add(head)
        for number in needed_by[head]:
            num_open[number] -= 1
            if not num_open[number]:
                ready.append(heads[number])
    return ended
