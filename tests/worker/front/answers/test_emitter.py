"""What was read comes out in few events, without the white space that only parts sections."""

from __future__ import annotations

from dormouse_worker.front.answers.emitter import Emitter
from dormouse_worker.front.answers.events import Arguments, CallBegins, Content, Reasoning


def test_neighbours_of_a_kind_are_one_event():
    out = Emitter({})
    out.content("a")
    out.content("b")
    out.reasoning("c")
    first = out.begin_call("f")
    first.open("{", "}")
    first.close()
    second = out.begin_call("g")
    second.text("{")
    second.text("}")
    told = [Content("ab"), Reasoning("c"), CallBegins(0, "f"), Arguments(0, "{}"), CallBegins(1, "g")]
    assert out.take() == [*told, Arguments(1, "{}")]
    assert out.take() == []


def test_white_space_is_told_when_text_follows_it_and_left_out_at_a_section():
    out = Emitter({})
    out.content("a \n")
    assert out.take() == [Content("a")]
    out.content("b ")
    out.part()
    out.content(" \xa0c ")
    assert out.take() == [Content(" \nb\xa0c")]
    out.finish()
    assert out.take() == [Content(" ")]


def test_nothing_is_told_of_white_space_behind_the_last_section():
    out = Emitter({})
    out.begin_call("f")
    out.content(" \n")
    out.finish()
    assert out.take() == [CallBegins(0, "f")]
    out.finish()
    assert out.take() == []


def test_text_as_it_stands_keeps_its_white_space():
    out = Emitter({})
    out.content("a ")
    out.verbatim_content(" b ")
    out.verbatim_reasoning("")
    out.verbatim_reasoning(" c ")
    assert out.take() == [Content("a b "), Reasoning(" c ")]
    out.reasoning("d")
    assert out.take() == [Reasoning("d")]


def test_it_says_what_it_holds():
    out = Emitter({})
    out.begin_call("f")
    assert repr(out) == "Emitter(1 calls, 1 events)"
