"""Output types: which texts they admit, what values come back, and what is refused by name."""

from __future__ import annotations

import json
import random
import uuid
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NewType, Optional

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt, RootModel, TypeAdapter, field_validator

from furcate.lang.errors import (
    InvalidRegex,
    UnsatisfiableConstraint,
    UnsupportedByBackend,
    ValidationFailed,
)
from furcate.lang.types import OutputType, grammar, regex, resolve
from furcate.runtime.constraints.byte_dfa import DEAD, ByteDFA
from furcate.runtime.models.byte_tokenizer import ByteTokenizer


class Currency(str, Enum):  # noqa: UP042 - the common spelling, and not the same as StrEnum
    EUR = "EUR"
    USD = "USD"
    QUOTED = 'a "b" \\ é'


class Level(IntEnum):
    ONE = 1
    TEN = 10
    HUNDRED = 100


class Line(BaseModel):
    sku: str = Field(pattern=r"[A-Z]{2}-\d{3}")
    quantity: int = Field(ge=1, le=999)
    price: Decimal


class Invoice(BaseModel):
    vendor: str
    issued: date
    currency: Currency
    note: str | None = None
    lines: list[Line] = Field(min_length=1, max_length=5)


class Search(BaseModel):
    tool: Literal["search"] = "search"
    query: str


class Calculate(BaseModel):
    tool: Literal["calculate"] = "calculate"
    left: float
    operator: Literal["+", "-", "*", "/"]


class Everything(BaseModel):
    """One field of every supported kind."""

    a: int
    b: float
    c: bool
    d: str = Field(min_length=2, max_length=4)
    e: Literal["x", 1, True, None]
    f: Level
    g: Search
    h: list[int | None]
    i: str | int | None
    j: datetime
    k: time
    ident: uuid.UUID
    m: list[list[str]] = Field(max_length=2)
    n: PositiveInt
    o: Annotated[str, regex(r'[ab"\\\n]{1,3}')]
    p: Annotated[int, Field(gt=-5, lt=5)] | None
    q: Literal[Currency.EUR]
    r: Annotated[str, Field(max_length=3)] | None = None
    s: None = None
    t: str = Field(alias="the key", default="")


class Words(RootModel[list[str]]):
    pass


Age = NewType("Age", int)

MAYBE = Optional[int]  # noqa: UP045 - not the same object as int | None

TYPES: list[Any] = [
    int, float, bool, None, date, datetime, time, uuid.UUID, Decimal, Level, Currency, Literal["a", "ab", 3, None],
    Annotated[int, Field(ge=-3, le=1200)], Annotated[str, Field(min_length=1, max_length=3)], list[int], list[Currency],
    MAYBE, str | None, int | str, Search | Calculate, Invoice, Everything, Words, Age,
    list[Search | Calculate | None], regex("(cat|category)"), Annotated[str, regex("x+")],
    Annotated[str, Field(pattern="^a.$")],
]  # fmt: skip


def automaton(wanted: Any) -> ByteDFA:
    dfa = resolve(wanted).dfa
    assert dfa is not None
    return dfa


def admits(wanted: Any, text: str) -> bool:
    return automaton(wanted).accepts(text.encode())


def walk(dfa: ByteDFA, rng: random.Random) -> str:
    """A random text: any byte that may follow, and the shortest way home after a while."""
    state, text = 0, bytearray()
    while True:
        row = dfa.table[state]
        options = np.flatnonzero(row != DEAD).tolist()
        if dfa.accepting[state] and (not options or rng.random() < 0.2):
            return text.decode("utf-8")
        if len(text) > 60:
            options = [b for b in options if dfa.min_bytes[row[b]] < dfa.min_bytes[state]] or options
        byte = rng.choice(options)
        text.append(byte)
        state = int(row[byte])


@pytest.mark.parametrize("wanted", TYPES, ids=str)
def test_random_texts_always_parse_and_validate_again(wanted: Any) -> None:
    output: OutputType[Any] = resolve(wanted)
    rng = random.Random(0)
    adapter: TypeAdapter[Any] = TypeAdapter(str if isinstance(wanted, OutputType) else wanted)
    for _ in range(60):
        text = walk(automaton(wanted), rng)
        value = output.parse(text)
        adapter.validate_python(value, by_name=True)


@pytest.mark.parametrize("wanted", TYPES, ids=str)
def test_the_constraint_agrees_with_the_automaton(wanted: Any) -> None:
    output: OutputType[Any] = resolve(wanted)
    constraint = output.constraint(ByteTokenizer().vocabulary)
    assert constraint is not None
    state = constraint.initial()
    for byte in walk(automaton(wanted), random.Random(1)).encode():
        state = constraint.advance(state, byte)
    assert constraint.may_end(state)


invoices = st.builds(
    Invoice,
    vendor=st.text(),
    issued=st.dates(),
    currency=st.sampled_from(Currency),
    note=st.none() | st.text(),
    lines=st.lists(
        st.builds(
            Line,
            sku=st.from_regex(r"\A[A-Z]{2}-[0-9]{3}\Z"),
            quantity=st.integers(1, 999),
            price=st.decimals(allow_nan=False, allow_infinity=False, places=2),
        ),
        min_size=1,
        max_size=5,
    ),
)


@settings(max_examples=40, deadline=None)
@given(invoices)
def test_models_that_pydantic_writes_are_admitted_and_read_back(invoice: Invoice) -> None:
    text = invoice.model_dump_json()
    assert admits(Invoice, text)
    assert resolve(Invoice).parse(text) == invoice


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=6), st.booleans())
def test_json_strings_in_any_spelling(text: str, ascii_only: bool) -> None:
    spelt = json.dumps({"query": text}, ensure_ascii=ascii_only, separators=(",", ":"))
    text_of_model = '{"tool":"search",' + spelt[1:]
    assert admits(Search, text_of_model)
    assert resolve(Search).parse(text_of_model).query == text


@pytest.mark.parametrize("content", ['a"b', "\n", "\x00", "\\", "\\x", "\\ud800", "\\udc00", "\\u12", "\\ud800\\u0041"])
def test_malformed_json_strings_are_not_admitted(content: str) -> None:
    assert not admits(Search, '{"tool":"search","query":"' + content + '"}')


@pytest.mark.parametrize("content", [r"\/", r"\b\f", r"é", r"🎉", "\x7f", r"\uD83C\uDF89"])
def test_every_json_escape_is_admitted(content: str) -> None:
    text = '{"tool":"search","query":"' + content + '"}'
    assert admits(Search, text)
    assert resolve(Search).parse(text).query == json.loads(text)["query"]


def test_enum_values_that_share_a_prefix_are_all_admitted() -> None:
    assert [text for text in ("1", "10", "100", "0", "1000", "") if admits(Level, text)] == ["1", "10", "100"]
    assert admits(Level | None, "100")
    assert [resolve(Level).parse(text) for text in ("1", "10", "100")] == list(Level)


def test_choices_of_finite_types() -> None:
    assert resolve(bool).choices() == [(True, "true"), (False, "false")]
    assert resolve(Literal["a", 1, None, True]).choices() == [("a", "a"), (1, "1"), (None, "null"), (True, "true")]
    assert resolve(Level).choices() == [(Level.ONE, "1"), (Level.TEN, "10"), (Level.HUNDRED, "100")]
    assert resolve(int).choices() is None
    assert resolve(str).choices() is None


def test_texts_that_are_literals_keep_their_type() -> None:
    values = resolve(Literal["1", True, None, 2])
    assert [values.parse(text) for text in ("1", "true", "null", "2")] == ["1", True, None, 2]
    assert values.parse("true") is True


@pytest.mark.parametrize(
    ("wanted", "longest"),
    [(str, None), (int, None), (bool, 5), (Level, 3), (date, 10), (uuid.UUID, 36), (None, 4), (list[int], None),
     (Annotated[int, Field(ge=0, le=99)], 2), (Annotated[str, Field(max_length=3)], 12), (regex("a{2,4}"), 4)],
)  # fmt: skip
def test_longest_text(wanted: Any, longest: int | None) -> None:
    assert resolve(wanted).max_bytes == longest
    assert resolve(wanted).finite == (longest is not None)


def test_plain_text_is_unconstrained() -> None:
    output = resolve(str)
    assert output.constraint(ByteTokenizer().vocabulary) is None
    assert output.parse("  anything\n") == "  anything\n"


@pytest.mark.parametrize(
    ("wanted", "name"),
    [(int, "int"), (None, "NoneType"), (Invoice, "Invoice"), (Search | Calculate, "Search | Calculate"),
     (MAYBE, "int | None"), (list[Search], "list[Search]"), (regex("a+"), "regex('a+')"),
     (Annotated[int, Field(ge=1)], "int")],
)  # fmt: skip
def test_names(wanted: Any, name: str) -> None:
    assert resolve(wanted).name == name


def test_unions_of_models_come_back_as_the_right_model() -> None:
    output = resolve(Search | Calculate)
    assert output.parse('{"tool":"search","query":"x"}') == Search(query="x")
    assert output.parse('{"tool":"calculate","left":1.5,"operator":"+"}') == Calculate(left=1.5, operator="+")
    assert not admits(Search | Calculate, '{"tool":"search","left":1.5,"operator":"+"}')


def test_objects_are_compact_and_in_field_order() -> None:
    assert admits(Calculate, '{"tool":"calculate","left":1,"operator":"*"}')
    for text in (
        '{"tool":"calculate", "left":1,"operator":"*"}',
        '{"left":1,"tool":"calculate","operator":"*"}',
        '{"left":1,"operator":"*"}',
        '{"tool":"calculate","left":1,"operator":"*","more":1}',
        '{"tool":"calculate","left":1,"operator":"*"} ',
    ):
        assert not admits(Calculate, text)


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    day: date
    count: int
    currency: Currency


def test_strict_models_read_what_they_admit() -> None:
    text = '{"day":"2024-02-29","count":3,"currency":"EUR"}'
    assert admits(Strict, text)
    assert resolve(Strict).parse(text) == Strict(day=date(2024, 2, 29), count=3, currency=Currency.EUR)


class Even(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def even(cls, n: int) -> int:
        if n % 2:
            raise ValueError("n must be even")
        return n


def double(n: int) -> int:
    if n == 13:
        raise ValueError("unlucky")
    return 2 * n


def test_validators_run_and_their_refusal_is_typed() -> None:
    assert resolve(Even).parse('{"n":2}').n == 2
    with pytest.raises(ValidationFailed, match="even"):
        resolve(Even).parse('{"n":3}')
    doubled: OutputType[int] = resolve(Annotated[int, AfterValidator(double)])
    assert doubled.parse("4") == 8
    with pytest.raises(ValidationFailed, match="unlucky"):
        doubled.parse("13")


def test_partial_values() -> None:
    assert resolve(Invoice).partial('{"vendor":"Al') == {"vendor": "Al"}
    assert resolve(Search | Calculate).partial('{"tool":"calculate","left":1,"oper') == {"tool": "calculate", "left": 1}
    assert resolve(list[int]).partial("[1,2") == [1, 2]
    assert resolve(date).partial("2024-0") == "2024-0"
    assert resolve(Invoice).partial("") == ""


class Node(BaseModel):
    title: str
    children: list[Node] = []


class Inner(BaseModel):
    values: set[int]


class Outer(BaseModel):
    rows: list[Inner]


class Stripped(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True)
    s: str


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Annotated[int, Field(multiple_of=3)], "MultipleOf"),
        (Annotated[float, Field(ge=0)], "float"),
        (Annotated[int, Field(ge=0.5)], "0.5"),
        (Annotated[int, Field(lt=float("inf"))], "inf"),
        (Annotated[Decimal, Field(decimal_places=2)], "decimal_places"),
        (Annotated[int | str, Field(max_length=3)], "union"),
        (Literal["1", 1], "both written"),
        (Stripped, "str_strip_whitespace"),
        (Annotated[str, grammar("start: X")], "grammar"),
    ],
)
def test_what_is_not_enforced_exactly_is_refused_by_name(wanted: Any, message: str) -> None:
    with pytest.raises(UnsupportedByBackend, match=message):
        resolve(wanted)


@pytest.mark.parametrize("wanted", ["int", 5, list["int"], "Invoice", 3.5])
def test_what_is_no_type_is_a_type_error(wanted: Any) -> None:
    with pytest.raises(TypeError):
        resolve(wanted)


def test_impossible_bounds_are_unsatisfiable() -> None:
    for wanted in (Annotated[int, Field(ge=5, le=4)], Annotated[str, Field(min_length=3, max_length=2)],
                   Annotated[list[int], Field(min_length=3, max_length=2)]):  # fmt: skip
        with pytest.raises(UnsatisfiableConstraint):
            resolve(wanted)


def test_patterns_fail_at_the_use() -> None:
    empty, malformed = regex("a^b"), regex("(a")
    with pytest.raises(UnsatisfiableConstraint):
        empty.constraint(ByteTokenizer().vocabulary)
    with pytest.raises(InvalidRegex):
        malformed.constraint(ByteTokenizer().vocabulary)
    with pytest.raises(TypeError):
        regex(3)  # type: ignore[arg-type]  # the point


def test_types_are_resolved_once() -> None:
    assert resolve(Invoice) is resolve(Invoice)
    assert resolve(Literal[1]) is not resolve(Literal[True])
