"""A log line is one line of fields; what it is about stands in it."""

from __future__ import annotations

import json
import logging
import sys

from dormouse_operator.logs import FieldsFormatter, log_object, log_step


def record(message, error=None):
    return logging.LogRecord("part", logging.INFO, "f.py", 1, message, (), error)


def test_a_line_is_words_and_quotes_only_what_is_no_word():
    text = FieldsFormatter("text", epoch=lambda: 3)
    with log_object("team/tiny"), log_step("publish"):
        line = text.format(record('took "two"\nlines'))
    assert line.endswith(r'level=INFO logger=part message="took \"two\"\nlines" object=team/tiny step=publish epoch=3')
    assert "\n" not in line


def test_what_is_not_known_is_left_out():
    line = FieldsFormatter("text").format(record("plain"))
    assert line.endswith("level=INFO logger=part message=plain")


def test_json_holds_the_traceback_as_a_field():
    try:
        int("words")
    except ValueError:
        line = FieldsFormatter("json", epoch=lambda: 1).format(record("it failed", sys.exc_info()))
    fields = json.loads(line)
    assert fields["epoch"] == 1
    assert fields["message"] == "it failed"
    assert fields["error"].endswith("invalid literal for int() with base 10: 'words'")


def test_the_object_holds_only_as_long_as_it_is_worked_on():
    text = FieldsFormatter("text")
    with log_object("team/tiny"):
        pass
    assert "team/tiny" not in text.format(record("later"))
