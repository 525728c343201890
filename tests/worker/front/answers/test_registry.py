"""Families of models that installed packages bring, by entry point."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

import pytest

from dormouse_worker.common.errors import InvalidSettings
from dormouse_worker.common.settings import EngineSettings
from dormouse_worker.front.answers.detection import families_of
from dormouse_worker.front.answers.parser import AnswerParser, Grammar
from dormouse_worker.front.answers.registry import BUILT_IN, REASONING_GROUP, TOOLS_GROUP, installed_families
from tests.worker.front.answers.corpus import collected
from tools.bootstrap import ROOT

EXAMPLE = ROOT / "examples" / "extend" / "arrow_calls"
TEMPLATE = "{{ messages }}<<muse>><</muse>><<do>><tool_call>"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that lays out a package as pip would, importable while the test runs."""

    def lay_out(distribution, tools="", reasoning=""):
        site = tmp_path / distribution
        info = site / f"{distribution}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[{TOOLS_GROUP}]\n{tools}\n[{REASONING_GROUP}]\n{reasoning}\n")
        monkeypatch.syspath_prepend(site)
        monkeypatch.syspath_prepend(EXAMPLE)

    yield lay_out
    sys.modules.pop("arrow_calls", None)


def test_without_packages_there_are_ours():
    assert installed_families([], []) == BUILT_IN
    assert "hermes" in BUILT_IN.tools
    assert BUILT_IN.reasoning_names[-1] == "openai"


def test_a_packages_families_are_known_by_name_and_by_their_templates(install):
    install("arrows", "arrows = arrow_calls:CALLS", "muses = arrow_calls:THOUGHTS")
    families = installed_families()
    assert families.tool_names == (*BUILT_IN.tool_names[:-1], "arrows", "openai")
    settings = EngineSettings(model="m")
    assert families_of(TEMPLATE, settings, families) == ("arrows", "muses")
    assert families_of("<tool_call><<mu", settings, families) == ("hermes", "")
    assert families_of(TEMPLATE, EngineSettings(model="m", tool_call_parser="none"), families) == ("", "muses")
    assert families_of("", EngineSettings(model="m", tool_call_parser="arrows"), families) == ("arrows", "")


def test_an_answer_is_read_by_a_packages_families_however_it_is_cut(install):
    install("arrows", "arrows = arrow_calls:CALLS", "muses = arrow_calls:THOUGHTS")
    families = installed_families()
    grammar = Grammar(tools=families.tools["arrows"], reasoning=families.reasoning["muses"])
    text = '<<muse>>Hm.<</muse>>Look. <<do>>weather=>{"city": "Oslo"}<<done>>'
    for size in (1, 3, len(text)):
        parser = AnswerParser(grammar, {"weather": {}})
        events = [event for at in range(0, len(text), size) for event in parser.feed(text[at : at + size])]
        said = collected([*events, *parser.finish()])
        assert (said.reasoning, said.content.strip()) == ("Hm.", "Look.")
        assert said.calls == (("weather", '{"city":"Oslo"}'),)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("hermes = arrow_calls:CALLS", "family 'hermes' of arrows 1.2: the name is taken"),
        ("auto = arrow_calls:CALLS", "family 'auto' of arrows 1.2: the name is taken"),
        ("openai = arrow_calls:CALLS", "the name is taken"),
        ("others = arrow_calls:CALLS", "arrow_calls:CALLS is no ToolFamily of this name"),
        ("arrows = arrow_calls:CallForm", "arrow_calls:CallForm is no ToolFamily of this name"),
        ("muses = arrow_calls:THOUGHTS", "arrow_calls:THOUGHTS is no ToolFamily of this name"),
        ("arrows = arrow_calls:MISSING", "loading arrow_calls:MISSING fails: AttributeError"),
    ],
)
def test_what_is_no_family_or_takes_a_name_is_refused_with_its_package(install, entry, words):
    install("arrows", entry)
    with pytest.raises(InvalidSettings) as refused:
        installed_families()
    assert words in str(refused.value)


def test_a_name_that_two_packages_offer_is_refused(install):
    install("arrows", "arrows = arrow_calls:CALLS")
    entries = [*entry_points(group=TOOLS_GROUP)] * 2
    with pytest.raises(InvalidSettings, match="the name is taken"):
        installed_families(entries, [])
