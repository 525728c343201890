"""Router policies by name: ours, those of installed packages, and what is wrong with a package by its name."""

import sys

import pytest

from dormouse_gateway.routing.built_in import LeastTokens, PrefixAffinity, RoundRobin
from dormouse_gateway.routing.policy import Choice, Demand, PolicyOptions, Worker
from dormouse_gateway.routing.registry import GROUP, BadPolicy, GuardedPolicy, make_policy

OPTIONS = PolicyOptions(affinity_bound=1.5)
WORKERS = [Worker("a", tokens=9), Worker("b")]
POLICY = """
from dormouse_gateway.routing.policy import Choice

class Policy:
    def __init__(self, options):
        self.options = options

    def choose(self, demand, workers):
        return Choice(workers[0])
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that lays out a package as pip would, importable while the test runs."""
    modules = []

    def lay_out(distribution, entry, *, code=POLICY, name="first"):
        site = tmp_path / distribution
        info = site / f"{distribution.replace('-', '_')}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {entry}\n")
        module = entry.partition(":")[0]
        (site / f"{module}.py").write_text(code)
        modules.append(module)
        monkeypatch.syspath_prepend(site)

    yield lay_out
    for module in modules:
        sys.modules.pop(module, None)


def test_ours_are_there_by_name():
    assert make_policy("prefix-affinity", OPTIONS) == PrefixAffinity(1.5)
    assert isinstance(make_policy("least-tokens", OPTIONS), LeastTokens)
    assert isinstance(make_policy("round-robin", OPTIONS), RoundRobin)


def test_an_installed_package_adds_a_policy_and_is_imported_only_when_it_is_asked_for(install):
    install("first-policy", "first_policy:Policy")
    make_policy("round-robin", OPTIONS)
    assert "first_policy" not in sys.modules
    policy = make_policy("first", OPTIONS)
    assert policy.choose(Demand(), WORKERS) == Choice(WORKERS[0])
    assert repr(policy) == "GuardedPolicy(router policy 'first' of first-policy 1.2, 0 failures)"


def test_an_unknown_name_is_told_with_those_that_there_are(install):
    install("first-policy", "first_policy:Policy")
    known = "prefix-affinity, least-tokens, round-robin, first"
    with pytest.raises(BadPolicy, match=f"no router policy is called 'frist'; known are {known}"):
        make_policy("frist", OPTIONS)


@pytest.mark.parametrize("name", ["first", "round-robin"])
def test_two_that_offer_one_name_are_both_named(install, name):
    install("first-policy", "first_policy:Policy", name=name)
    if name == "first":
        install("other-policy", "other_policy:Policy", name=name)
    with pytest.raises(BadPolicy, match=f"router policy '{name}' is offered twice, by ") as caught:
        make_policy(name, OPTIONS)
    origins = {"first": ("first-policy 1.2", "other-policy 1.2"), "round-robin": ("dormouse itself", "first-policy")}
    assert [origin for origin in origins[name] if origin not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("entry", "code", "words"),
    [
        ("broken:Policy", "import nothing_there", "making broken:Policy fails: ModuleNotFoundError"),
        ("empty:Policy", "", "making empty:Policy fails: AttributeError"),
        ("greedy:Policy", "class Policy:\n    pass", "making greedy:Policy fails: TypeError"),
        ("wrong:make", "def make(options): return 3", "wrong:make makes no policy: it has no method choose"),
    ],
)
def test_a_package_that_does_not_work_is_named_and_others_are_there(install, entry, code, words):
    install("first-policy", entry, code=code)
    with pytest.raises(BadPolicy, match=f"router policy 'first' of first-policy 1.2: {words}"):
        make_policy("first", OPTIONS)
    assert make_policy("round-robin", OPTIONS)


class Wrong:
    """Fails, or chooses who is not there."""

    def __init__(self, answer):
        self.answer = answer

    def choose(self, _demand, workers):
        return self.answer(workers)


@pytest.mark.parametrize("answer", [lambda _: 1 / 0, lambda _: Choice(Worker("gone")), lambda _: "a"])
def test_where_a_policy_fails_the_least_loaded_worker_is_chosen_and_the_log_stays_short(answer, caplog):
    policy = GuardedPolicy("router policy 'x'", Wrong(answer))
    for _ in range(100):
        assert policy.choose(Demand(), WORKERS).worker is WORKERS[1]
    assert "100 failures" in repr(policy)
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 7, "1, 2, 4, … 64"


def test_a_policy_may_choose_nobody():
    assert GuardedPolicy("x", Wrong(lambda _: None)).choose(Demand(), WORKERS) is None
