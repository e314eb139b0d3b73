"""Lark grammars as constraints: admitted is exactly what lark parses."""

from __future__ import annotations

import itertools
import random

import pytest
from lark import Lark, Transformer
from lark.exceptions import LarkError

import furcate as fc
from furcate.lang.errors import UnsupportedByBackend
from furcate.runtime.constraints.grammar import compile_grammar, load_grammar
from furcate.runtime.constraints.machine_masks import MachineConstraint
from furcate.runtime.models.byte_tokenizer import ByteTokenizer
from furcate.testing import RandomValid, admits

ARITHMETIC = r"""
    start: sum
    ?sum: product | sum "+" product -> add | sum "-" product -> subtract
    ?product: atom | product "*" atom -> multiply
    ?atom: NUMBER -> number | "-" atom -> negate | "(" sum ")"
    %import common.NUMBER
    %import common.WS_INLINE
    %ignore WS_INLINE
"""
JSON = r"""
    ?start: value
    ?value: object | array | ESCAPED_STRING | SIGNED_NUMBER | "true" | "false" | "null"
    array: "[" [value ("," value)*] "]"
    object: "{" [pair ("," pair)*] "}"
    pair: ESCAPED_STRING ":" value
    %import common.ESCAPED_STRING
    %import common.SIGNED_NUMBER
    %import common.WS
    %ignore WS
"""
SQL = r"""
    start: "SELECT" columns "FROM" NAME ["WHERE" test]
    columns: "*" | NAME ("," NAME)*
    test: NAME ("=" | "<" | "<=") (NAME | INT) (("AND" | "OR") test)?
    NAME: /[A-Za-z_][A-Za-z0-9_]*/
    %import common.INT
    %ignore " "
"""
EXPRESSION = r"""
    ?start: either
    ?either: both | either "or" both
    ?both: no | both "and" no
    ?no: "not" no | compared
    ?compared: term | compared "<" term | compared "==" term
    ?term: factor | term "+" factor
    ?factor: NAME | NUMBER | "(" either ")" | factor "." NAME | factor "(" [either ("," either)*] ")"
    NAME: /[a-z_][a-z_0-9]*/
    %import common.NUMBER
    %ignore " "
"""
FALLBACK = 'start: (A|B|C)+\nA: "aaa"\nB: /a+b+z/\nC: /b+x/'
KEYWORDS = 'start: (NAME | "if" | "ifx" "!")+\nNAME: /[a-z]{1,3}/\n%ignore " "'
GRAMMARS = [
    (ARITHMETIC, "1.e+-*() "), (JSON, '{}[]":,1e.-n\\ '),
    (SQL, ["SELECT", "FROM", " ", "a", "*", ",", "=", "1", "AND", "<"]),
    (EXPRESSION, ["not", "or", "and", "a", "1", ".", "(", ")", " ", "e", "+", "==", "<"]), (FALLBACK, "abzx"),
    (KEYWORDS, "ifxa! "), ('start: ("list"|"listen") "ed"', ["list", "en", "ed", "e"]),
    ("start: a | b\na: /x/ a | /x/ b\nb: /y+/ /z/?", "xyz"),
]  # fmt: skip


def parses(parser: Lark, text: str) -> bool:
    try:
        parser.parse(text)
    except LarkError:
        return False
    return True


@pytest.mark.parametrize(("text", "alphabet"), GRAMMARS, ids=range(len(GRAMMARS)))
def test_admitted_is_what_lark_parses(text: str, alphabet: str | list[str]) -> None:
    parser = load_grammar(text, "start")
    machine = compile_grammar(parser)
    rng = random.Random(0)
    pieces = list(alphabet)
    tried = ["".join(parts) for size in range(4) for parts in itertools.product(pieces, repeat=size)][:1500]
    tried += ["".join(rng.choice(pieces) for _ in range(rng.randint(4, 12))) for _ in range(800)]
    for one in tried:
        assert machine.read(one.encode()).ends == parses(parser, one), one


@pytest.mark.parametrize(("text", "alphabet"), GRAMMARS, ids=range(len(GRAMMARS)))
def test_random_walks_never_end_in_a_dead_end_and_always_parse(text: str, alphabet: str | list[str]) -> None:
    parser = load_grammar(text, "start")
    machine = compile_grammar(parser)
    constraint = MachineConstraint(machine, ByteTokenizer().vocabulary)
    rng = random.Random(1)
    for _ in range(15):
        state, written = machine.start, bytearray()
        while not (state.ends and (len(written) > 30 or rng.random() < 0.2)):
            mask = constraint.mask(state)
            options = [byte for byte in range(256) if mask[byte // 32] >> (byte % 32) & 1]
            if not options:
                break
            nearer = [byte for byte in options if machine.need(machine.step(state, byte)) < machine.need(state)]
            byte = rng.choice(nearer if nearer and len(written) > 15 else options)
            written.append(byte)
            state = machine.step(state, byte)
            if len(written) > 300:
                break
        assert state.ends, bytes(written)
        assert parses(parser, written.decode()), bytes(written)


def test_the_value_is_a_tree_or_what_the_transformer_makes_of_it() -> None:
    class Value(Transformer):  # type: ignore[type-arg]  # of lark's tokens
        def number(self, parts: list[str]) -> float:
            return float(parts[0])

        def add(self, parts: list[float]) -> float:
            return parts[0] + parts[1]

        def start(self, parts: list[float]) -> float:
            return parts[0]

    assert fc.grammar(ARITHMETIC, transformer=Value()).parse("1 + 2") == 3
    assert fc.grammar(ARITHMETIC).parse("1").data == "start"
    assert admits(fc.grammar(ARITHMETIC), "1e5+(2)")
    assert not admits(fc.grammar(ARITHMETIC), "1+")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (r"start: /\/\*(.|\n)*?\*\//", "lark takes"),
        ("start: a | b\na: X\nb: X\nX: /x/", "LALR"),
        ("start: (", "malformed"),
    ],
)
def test_what_cannot_be_exact_is_refused(text: str, message: str) -> None:
    with pytest.raises(UnsupportedByBackend, match=message):
        admits(fc.grammar(text), "x")


def test_a_program_writes_an_expression() -> None:
    @fc.program
    def formula(c: fc.Context) -> object:
        c.user("An expression.")
        return c.gen(fc.grammar(ARITHMETIC), max_tokens=24)

    for seed in range(5):
        assert formula.using(RandomValid(seed), seed=seed)() is not None
