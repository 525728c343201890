"""Which files make room for others."""

from dormouse_worker.kv_store.budget import MAX_BONUS_S, NS_PER_S, Budget, bonus_ns, taken_bytes


def go(budget, needed_bytes):
    gone = []
    for key, _ in budget.first_to_go(needed_bytes):
        budget.remove(key)
        gone.append(key)
    return gone


def test_those_with_the_earliest_times_go_until_there_is_room():
    budget = Budget(100)
    for key, time_ns in {"late": 3, "early": 1, "middle": 2}.items():
        budget.set(key, time_ns, 30)
    assert go(budget, 10) == []
    assert go(budget, 41) == ["early", "middle"]
    assert (budget.num_bytes, dict(budget.sizes)) == (30, {"late": 30})


def test_what_gets_another_time_is_asked_for_in_its_new_turn():
    budget = Budget(60)
    budget.set("a", 1, 30)
    budget.set("b", 2, 30)
    budget.set("a", 3, 30)
    assert budget.num_bytes == 60
    assert go(budget, 30) == ["b"]
    assert "a" in budget


def test_nothing_goes_for_ever_where_it_never_fits():
    budget = Budget(10)
    budget.set("a", 1, 5)
    assert go(budget, 100) == ["a"]
    assert repr(budget) == "Budget(0 files, 0 of 10 bytes)"


def test_what_is_dear_to_compute_counts_as_used_later_but_not_for_ever():
    assert bonus_ns(0.0, 1 << 20) == 0
    assert bonus_ns(1.0, 1 << 20) == 3600 * NS_PER_S
    assert bonus_ns(1.0, 2 << 20) == 1800 * NS_PER_S
    assert bonus_ns(1e9, 1) == MAX_BONUS_S * NS_PER_S


def test_files_take_whole_pages():
    assert [taken_bytes(size) for size in (1, 4096, 4097)] == [4096, 4096, 8192]
