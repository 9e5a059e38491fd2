"""Regular expressions and EBNF (cases F16, F17, F19, F23) and the translation of GBNF."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ramet.errors import RequestError
from ramet.grammar import CompiledGrammar

Accepts = Callable[..., bool]
Compile = Callable[..., CompiledGrammar]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("a{3,1}", "the start must be <= the end"),
        ("[z-a]", "the start must be <= the end"),
        ("(?<=x)y", "look-around"),
        ("(", "unclosed group"),
        (r"(a)\1", "backreferences are not supported"),
        (r"\bx", "lookarounds not supported"),
        ("(" * 3000 + ")" * 3000, "nest"),
        ("a" * 40_000, "exceed the limit"),
        ("a\0", "NUL"),
        ("[^\\x00-\\x{10FFFF}]", "no text matches"),
    ],
)
def test_f16_what_cannot_be_matched_is_refused_with_the_reason(compiled: Compile, pattern: str, words: str) -> None:
    with pytest.raises(RequestError, match=r"^Failed to compile regex grammar: ") as caught:
        compiled("regex", pattern)
    assert words in caught.value.message
    assert caught.value.field == "regex"


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^\d{3}$", "123", "12"),
        ("(鱼|ñandú|🦊){2}", "鱼🦊", "鱼"),
        ("^a|b$", "b", "ab"),
        ("a/b", "a/b", "a"),
        (r"a\/b", "a/b", "ab"),
        ("a.b", "axb", "a\nb"),
        (r"ok\!", "ok!", "ok"),
        ("(?i)abc", "aBC", "abd"),
        ("a\nb", "a\nb", "ab"),
        ("[\\]/$^]", "$", "x"),
        ("", "", "a"),
        ("a{3}", "aaa", "aa"),
    ],
)
def test_f19_regular_expressions_match_whole_texts_over_bytes(
    accepts: Accepts, pattern: str, good: str, bad: str
) -> None:
    assert accepts("regex", pattern, good)
    assert not accepts("regex", pattern, bad)


def test_counts_of_counts_neither_explode_nor_stall(compiled: Compile) -> None:
    matcher = compiled("regex", "((a{1000}){1000}){1000}").matcher()
    assert all(matcher.accept(ord("a")) for _ in range(100))


GBNF = [
    ('root ::= "q"+', "qq", "r"),
    ('root ::= "<t>" .* "</t>" "fin"', "<t>a<\n</t>x</t>fin", "<t></t>"),
    ('root ::= item ("," item)*\nitem ::= [a-z]+ | [0-9]{2,3}\n', "ab,12", "1"),
    ('root ::= foo-bar # why\nfoo-bar ::= "\\"" [^"\\\\]* "\\""', '"ab"', '"a"b"'),
    ('root ::= "a" |\n "b"', "b", "ab"),
    ('root ::= "a"\n | "b"', "b", "ab"),
    ('root ::= (\n"a"\n)', "a", ""),
    ('root ::= "\\x41\\u0042\\U0001F98A\\n\\\\"', "AB🦊\n\\", "AB"),
    ("root ::= [鱼-鸟]+ [-a] [a-]", "鱼-a", "a"),
    ("root ::= 'it'", "it", "i"),
    ('root ::= "a"{3} "b"{1,} "c"{0,2}', "aaabbc", "aab"),
    ('root ::= start\nstart ::= fooBar foo_bar\nfooBar ::= "a"\nfoo_bar ::= "b"', "ab", "aa"),
    ('root ::= ("" "a") | ', "a", "aa"),
    ('root ::= [a-z]+ "x"', "abx", "ab"),
    ('root ::= "(" root ")" | [0-9]+', "((12))", "((12)"),
    ('root ::= expr\nexpr ::= expr "+" expr | [0-9]+', "1+2+33", "1+"),
    ("root ::= [^]", "\n", "ab"),
    ('root ::= [a\\]b"/]+', 'a]b"/', "x"),
    ('start: "a" B\nB: /[0-9]+/', "a12", "a"),
    ('%llguidance {}\nstart: x\nx: "a" "b"?', "ab", "b"),
]


@pytest.mark.parametrize(("grammar", "good", "bad"), GBNF)
def test_gbnf_and_lark(accepts: Accepts, grammar: str, good: str, bad: str) -> None:
    assert accepts("ebnf", grammar, good)
    assert not accepts("ebnf", grammar, bad)


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ('root ::= "a" missing', "uses missing, which is not defined"),
        ('a ::= "b"', "no rule named root"),
        ('root ::= "a"\nroot ::= "b"', "line 2, at 'root ::= \"b\"': rule root is defined twice"),
        ('root ::= "', "the text ends inside a literal"),
        ("root ::= [a-", "the text ends inside a literal"),
        ('root ::= "\\', "unknown escape"),
        ('root ::= "\\q"', "unknown escape \\q"),
        ('root ::= "\\u12"', "needs 4 hexadecimal digits"),
        ('root ::= "\\ud800"', "is not a character"),
        ("root ::= [z-a]", "ends before it begins"),
        ("root ::= []", "empty character class"),
        ('root ::= "a"{2,1}', "the first count exceeds the second"),
        ('root ::= "a"{x}', "expected {m}"),
        ('root ::= ("a"', "expected )"),
        ('root ::= "a")', "nothing is open here"),
        ("root ::= " + "(" * 5000, "parentheses"),
        ("root ::= %", "expected a literal"),
        ("what is this", "expected a rule"),
        ('root ::= root "a"', "no text matches"),
        ("start: (((", "Expected token ')'"),
        ("start: missing", "missing"),
        ('%llguidance {}\nstart: %json {"uniqueItems": true, "x-guidance": {"lenient": true}}', "uniqueItems"),
    ],
)
def test_wrong_grammars_are_refused_with_the_place(compiled: Compile, grammar: str, words: str) -> None:
    with pytest.raises(RequestError, match=r"^Failed to compile ebnf grammar: ") as caught:
        compiled("ebnf", grammar)
    assert words in caught.value.message
    assert caught.value.field == "ebnf"


@pytest.mark.parametrize("rule", ["r", "R"])
def test_long_chains_of_rules_do_not_crash(accepts: Accepts, rule: str) -> None:
    rules = "".join(f"{rule}{i}: {rule}{i + 1}\n" for i in range(4000))
    assert accepts("ebnf", f'start: {rule}0\n{rules}{rule}4000: "a"\n', "a")
