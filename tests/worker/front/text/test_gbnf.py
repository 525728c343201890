"""EBNF is read as llama.cpp, xgrammar and vLLM mean it: the language of the Lark grammar is the rules' own."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from dormouse_worker.common.grammar import GrammarRefused
from dormouse_worker.front.text.gbnf import is_ebnf, to_lark
from dormouse_worker.front.text.grammar_text import to_text

BYTES = LLTokenizer("byte")


def accepts(grammar, *texts):
    """Return for each text whether the whole of it is an answer."""
    whole = to_text({"kind": "grammar", "value": grammar})
    told = []
    for text in texts:
        matcher, ids = LLMatcher(BYTES, whole), list(text.encode())
        assert not matcher.is_error(), (to_lark(grammar), matcher.get_error())
        told.append(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())
    return told


SELECT = """
root ::= select_statement

select_statement ::= "SELECT " column " from " table " where " condition

column ::= "col_1 " | "col_2 "
table ::= "table_1 " | "table_2 "
condition ::= column "= " number
number ::= "1 " | "2 "
"""
VALUES = r"""
# a value
root   ::= object | list | string | [0-9]+ | "true"  # one of
object ::=
    "{" ws ( pair ("," ws pair)* )? "}" ws
pair   ::= string ":" ws root
list
  ::= "[" ws ( root ("," ws root)* )? "]" ws
string ::=
  "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
SUM = """
root  ::= (expr "=" term "\\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" expr ")"
ident ::= [a-z] [a-z0-9_]*
num   ::= [0-9]+
"""


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        (SELECT, ["SELECT col_1  from table_2  where col_2 = 1 "], ["SELECT col_1 from", "SELECT", ""]),
        (VALUES, ['{"a": [1,"\\u00e9",{}]}', "12", '"é"', "{\n   }"], ['{"a": }', '"\\x"', "[1,]", '"\n"']),
        (SUM, ["a+1*(b_2-3)=4\n", "a=1\nb=2\n"], ["a+=1\n", "a=1", "1a=2\n"]),
        ('root ::= [a-z]+ "b"', ["ab", "bbb"], ["b", "ba"]),
        ('root ::= root "a" | ""', ["", "aa"], ["b"]),
        ('root ::= ("ab" | "abc") "cd"', ["abcd", "abccd"], ["abc"]),
        ('root ::= "é"{2} . [^/]', ["éé\n😀"], ["éé", "éé\n/"]),
        ('root ::= "a" { 1 , 2 } "b"{2,} "c"{0,1}', ["abb", "aabbbc"], ["bb", "ab", "aaabb", "abbcc"]),
        (r'root ::= [\x41-\u0043\U0001F600-] "\t\"\\\[\]"', ['B\t"\\[]', '😀\t"\\[]', '-\t"\\[]'], ['D\t"\\[]']),
        ('root ::= a-b A_b a-b-\na-b ::= "1"\nA_b ::= "2"\na-b- ::= ()', ["12"], ["121", "112", "1"]),
    ],
)
def test_the_answers_are_those_of_the_rules(grammar, right, wrong):
    assert is_ebnf(grammar)
    assert (accepts(grammar, *right), accepts(grammar, *wrong)) == ([True] * len(right), [False] * len(wrong))


@pytest.mark.parametrize("lark", ["start: /[a-z]+/", 'start: "::="', "start: other\nother: /a ::= b/"])
def test_lark_stays_lark(lark):
    assert not is_ebnf(lark)


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ('other ::= "a"', "grammar: no rule is named root, with which an answer begins"),
        ('root ::= "a"\n\nroot ::= "b"', "line 3: root ::=: there is a rule of this name already"),
        ('"a"\nroot ::= "b"', 'line 1: "a": a rule is needed before it, as in root ::= ...'),
        ("root ::= a\n", "line 1: a: there is no such rule"),
        ('root ::= "a', "line 1: '\"a' is not understood"),
        ("root ::= (?a)", "line 1: ?: there is nothing before it that it could repeat"),
        ("root ::= | *", "there is nothing before it that it could repeat"),
        ('root ::= "a"*?', "there is nothing before it that it could repeat"),
        ('root ::= ("a"\n', "line 1: (: the group is not closed"),
        ('root ::= "a")', "line 1: ): no group is open"),
        (f"root ::= {'(' * 65}{')' * 65}", "(: groups may stand 64 deep in each other"),
        (r'root ::= "\q"', r"\q is no escape; \n, \r, \t, \xHH, \uHHHH and \UHHHHHHHH are"),
        (r'root ::= "\x4"', r"\x is no escape"),
        (r'root ::= "\ud800"', "it names what is no character"),
        (r"root ::= [\U00110000]", "it names what is no character"),
        ("root ::= [z-a]", "line 1: [z-a]: a range ends before it begins"),
        ("root ::= []", "line 1: []: it has no character"),
        ("root ::= [^]", "line 1: [^]: it has no character"),
        ("root ::= TagDispatch(a=b)", "line 1: '=b)' is not understood"),
    ],
)
def test_what_is_not_understood_is_refused_with_its_place(grammar, words):
    with pytest.raises(GrammarRefused) as refused:
        to_lark(grammar)
    assert words in str(refused.value)


def languages():
    """Rules as trees: a letter, a set, one of several, one after the other, repeated, or another rule."""
    leaf = st.sampled_from(
        [("text", "a"), ("text", "ab"), ("text", ""), ("set", "[ab]"), ("set", "[^b]"), ("rule", "x")]
    )
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.tuples(st.just("or"), st.lists(inner, min_size=1, max_size=3)),
            st.tuples(st.just("then"), st.lists(inner, min_size=1, max_size=3)),
            st.tuples(st.sampled_from("*+?"), inner),
        ),
        max_leaves=6,
    )


def written(tree):
    kind, inner = tree
    if kind == "text":
        return f'"{inner}"'
    if kind in "*+?":
        return f"({written(inner)}){kind}"
    if kind in {"or", "then"}:
        return "(" + (" | " if kind == "or" else " ").join(map(written, inner)) + ")"
    return inner


def language(tree, other, most):
    """Return every text of at most so many letters a, b and c that the rule allows, `other` those of rule x."""
    kind, inner = tree
    if kind == "text":
        return {inner}
    if kind == "set":
        return {"a", "b"} if inner == "[ab]" else {"a", "c"}
    if kind == "rule":
        return other
    if kind == "or":
        return set().union(*(language(each, other, most) for each in inner))
    if kind == "then":
        told = {""}
        for each in inner:
            told = joined(told, language(each, other, most), most)
        return told
    once = language(inner, other, most)
    told = {""} | once
    if kind != "?":
        for _ in range(most):
            told |= joined(told, once, most)
    return told if kind != "+" else joined(told, once, most)


def joined(firsts, seconds, most):
    return {first + second for first in firsts for second in seconds if len(first + second) <= most}


@settings(max_examples=60)
@given(root=languages(), x=languages().filter(lambda tree: "rule" not in str(tree)))
def test_the_language_is_that_of_the_rules_whatever_begins_alike(root, x):
    most = 3
    allowed = language(root, language(x, set(), most), most)
    texts = ["".join(letters) for length in range(most + 1) for letters in itertools.product("abc", repeat=length)]
    told = accepts(f"root ::= {written(root)}\nx ::= {written(x)}", *texts)
    assert {text for text, is_told in zip(texts, told, strict=True) if is_told} == {
        text for text in allowed if len(text) <= most
    }
