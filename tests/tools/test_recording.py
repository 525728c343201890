"""The record of a run says what ran, when, on what, with which seed, and how each test ended."""

import json

pytest_plugins = ["pytester"]


def test_a_record_names_seed_commit_seconds_and_outcomes(pytester, tmp_path):
    pytester.makeconftest(f"""
        from pathlib import Path
        from tests.recording import Recorder
        def pytest_configure(config):
            config.pluginmanager.register(Recorder("nightly", Path({str(tmp_path)!r})))
    """)
    pytester.makepyfile("def test_good(): pass\ndef test_bad(): assert False")
    pytester.runpytest(
        "-p", "randomly", "-p", "no:asyncio", "-p", "no:cacheprovider", "--randomly-seed=7"
    ).assert_outcomes(passed=1, failed=1)
    record = json.loads((tmp_path / "nightly.json").read_text())
    assert record["seed"] == 7
    assert record["seconds"] >= 0
    assert len(record["commit"].rstrip("+")) == 12
    assert {name.rpartition("::")[2]: test["outcome"] for name, test in record["tests"].items()} == {
        "test_bad": "failed",
        "test_good": "passed",
    }


def test_what_a_test_says_of_itself_stands_beside_its_outcome(pytester, tmp_path):
    pytester.makeconftest(f"""
        from pathlib import Path
        from tests.recording import Recorder
        def pytest_configure(config):
            config.pluginmanager.register(Recorder("nightly", Path({str(tmp_path)!r})))
    """)
    pytester.makepyfile("def test_good(record_property): record_property('ending', 'equal')")
    pytester.runpytest("-p", "no:asyncio", "-p", "no:cacheprovider").assert_outcomes(passed=1)
    (test,) = json.loads((tmp_path / "nightly.json").read_text())["tests"].values()
    assert (test["outcome"], test["ending"]) == ("passed", "equal")
