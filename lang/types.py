"""Output types: from a Python type to the constraint on the text and back from the text to a value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ForwardRef, Literal, TypeVar, overload
from uuid import UUID

import pydantic_core
from lark import Lark
from pydantic import TypeAdapter
from typing_extensions import TypeForm

from ..runtime.constraints.byte_dfa import compile_pattern
from ..runtime.constraints.choices import compile_choices
from ..runtime.constraints.grammar import compile_grammar, load_grammar
from ..runtime.constraints.json_schema import compile_schema
from ..runtime.constraints.limited import compile_limited
from ..runtime.constraints.regex_syntax import translate
from ..runtime.constraints.schema_build import Style
from ..runtime.errors import UnsupportedByBackend, UnsupportedSchema
from .output_type import OutputType
from .type_rules import (
    bare,
    bare_text,
    is_bare,
    is_union,
    json_rule,
    literal_values,
    plain_value,
    read_limits,
    split_annotated,
    type_name,
)
from .type_schema import schema_of

__all__ = ["OutputType", "grammar", "json_schema", "regex", "resolve"]

if TYPE_CHECKING:
    from lark import Token, Transformer, Tree

T = TypeVar("T")

_MAX_INT_DIGITS = 4000
"""``int`` reads no more than 4300 digits at once."""


@overload
def resolve(wanted: OutputType[T]) -> OutputType[T]: ...
@overload
def resolve(wanted: TypeForm[T]) -> OutputType[T]: ...
def resolve(wanted: Any) -> OutputType[Any]:
    """The output type of a Python type.

    ``str``, ``int``, ``float``, ``bool``, ``None``, ``Literal``, ``Enum``, ``date``, ``datetime``, ``time``, ``UUID``
    and ``Decimal`` are bare text; pydantic models, dataclasses, ``TypedDict``, containers, ``X | None``, other unions
    and whatever else pydantic has a JSON Schema for are compact JSON in field order.

    Raises TypeError for what is no type, UnsupportedByBackend, with the path of the field, for a type or a constraint
    that cannot be enforced exactly, UnsatisfiableConstraint where no value exists.
    """
    if isinstance(wanted, OutputType):
        return wanted
    if isinstance(wanted, str | ForwardRef):
        raise TypeError(f"an output type is a type, not the string {str(wanted)!r}; write it without quotes")
    if wanted is None:
        wanted = type(None)
    try:
        return _resolve_cached(wanted)
    except TypeError as error:
        if "unhashable" not in str(error):
            raise
        return _resolve(wanted)


def _resolve(wanted: Any) -> OutputType[Any]:
    inner, metadata = split_annotated(wanted)
    name = type_name(inner)
    if not (isinstance(inner, type) or hasattr(inner, "__origin__") or is_union(inner)):
        if getattr(inner, "__module__", None) not in ("typing", "typing_extensions"):
            raise TypeError(f"an output type is a type, not {inner!r}")
        return _ruled(wanted, name, UnsupportedByBackend(f"{name} cannot be generated"))
    values = literal_values(inner)
    if values is not None:
        return _choice(inner, metadata, name, values, wanted)
    if is_bare(inner):
        return _bare(inner, metadata, name, wanted)
    try:
        rule = json_rule(inner, metadata, name)
    except UnsupportedByBackend as refusal:
        return _ruled(wanted, name, refusal)
    adapter: TypeAdapter[Any] = TypeAdapter(wanted)
    return OutputType(name, adapter.validate_json, compile=lambda: compile_pattern(rule.pattern), partial=_partial_json)


def _ruled(wanted: Any, name: str, refusal: UnsupportedByBackend) -> OutputType[Any]:
    """A type whose JSON is no regular language, or too large for one automaton: rules made of its JSON Schema.

    ``refusal`` says why it is none; it is raised where the type has no JSON Schema either.
    """
    try:
        schema = schema_of(wanted, name)
        machine = compile_schema(schema, style=Style(plain_integers=True)).machine
    except (UnsupportedByBackend, UnsupportedSchema) as error:
        raise UnsupportedByBackend(f"{refusal} ({error})") from error
    adapter: TypeAdapter[Any] = TypeAdapter(wanted)
    return OutputType(name, adapter.validate_json, machine=lambda: machine, partial=_partial_json)


_resolve_cached = lru_cache(maxsize=256, typed=True)(_resolve)


def _choice(inner: Any, metadata: tuple[Any, ...], name: str, values: list[Any], wanted: Any) -> OutputType[Any]:
    if read_limits(metadata, name, inner) != read_limits((), name, inner):
        raise UnsupportedByBackend(f"{name} cannot be generated: its constraints are not enforced")
    by_text: dict[str, Any] = {}
    for value in values:
        text = bare_text(plain_value(value, name, inner))
        if text in by_text:
            raise UnsupportedByBackend(
                f"{name} cannot be generated: {by_text[text]!r} and {value!r} are both written {text!r}"
            )
        by_text[text] = value
    return OutputType(
        name,
        _validated(by_text.__getitem__, metadata, wanted),
        compile=lambda: compile_choices(text.encode() for text in by_text),
        choices=lambda: [(value, text) for text, value in by_text.items()],
    )


_READERS: dict[Any, Callable[[str], Any]] = {
    float: float,
    date: date.fromisoformat,
    datetime: datetime.fromisoformat,
    time: time.fromisoformat,
    UUID: UUID,
    Decimal: Decimal,
    str: str,
    type(None): lambda text: None,
}


def _read_int(text: str) -> int:
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    value = 0
    for start in range(0, len(digits), _MAX_INT_DIGITS):
        part = digits[start : start + _MAX_INT_DIGITS]
        value = value * 10 ** len(part) + int(part)
    return sign * value


def _bare(inner: Any, metadata: tuple[Any, ...], name: str, wanted: Any) -> OutputType[Any]:
    rule = bare(inner, metadata, name)
    reader = _read_int if inner is int else _READERS[inner]
    return OutputType(
        name,
        _validated(reader, metadata, wanted),
        compile=None if rule is None else lambda: compile_pattern(rule.pattern),
    )


def _validated(reader: Callable[[str], Any], metadata: tuple[Any, ...], wanted: Any) -> Callable[[str], Any]:
    """``reader``, followed by pydantic's validation where the type carries metadata."""
    if not metadata:
        return reader
    adapter: TypeAdapter[Any] = TypeAdapter(wanted)
    return lambda text: adapter.validate_python(reader(text))


def _partial_json(text: str) -> Any:
    try:
        return pydantic_core.from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return text


def regex(pattern: str, /) -> OutputType[str]:
    """Text that matches ``pattern`` as a whole; also metadata, ``Annotated[str, regex("...")]``.

    The dialect is Python's without what is not regular; see ``runtime.constraints.regex_syntax``. InvalidRegex and
    UnsatisfiableConstraint are raised at the use.
    """
    if isinstance(pattern, re.Pattern):
        raise TypeError("fc.regex takes the pattern's text; give compiled.pattern, with its flags as (?i) and the like")
    if not isinstance(pattern, str):
        raise TypeError(f"fc.regex takes the pattern's text, not {pattern!r}")
    return _of_pattern(pattern)


@lru_cache(maxsize=256)
def _of_pattern(pattern: str) -> OutputType[str]:
    return OutputType(f"regex({pattern!r})", str, compile=lambda: compile_limited(translate(pattern)), pattern=pattern)


@overload
def grammar(text: str, /, *, start: str = ...) -> OutputType[Tree[Token]]: ...
@overload
def grammar(text: str, /, *, start: str = ..., transformer: Transformer[Token, T]) -> OutputType[T]: ...
def grammar(
    text: str, /, *, start: str = "start", transformer: Transformer[Token, Any] | None = None
) -> OutputType[Any]:
    """Text of a context-free language in lark's notation (LALR, contextual lexer). The value is the ``lark.Tree``, or
    what ``transformer`` makes of it.

    Exactly the texts that lark parses are admitted. The first use raises UnsupportedByBackend for a grammar that is not
    LALR(1) or has a terminal of which lark does not take the longest match, InvalidRegex for a terminal that is not
    regular.
    """
    if not isinstance(text, str):
        raise TypeError(f"fc.grammar takes the grammar's text, not {text!r:.80}")

    @lru_cache(maxsize=1)
    def parser() -> Lark:
        return load_grammar(text, start)

    def read(generated: str) -> Any:
        tree = parser().parse(generated)
        return tree if transformer is None else transformer.transform(tree)

    return OutputType("grammar(...)", read, machine=lambda: compile_grammar(parser()))


def json_schema(
    schema: Mapping[str, Any] | bool,
    /,
    *,
    whitespace: Literal["compact", "flexible"] = "compact",
    key_order: Literal["schema", "any"] = "schema",
    lenient: bool = False,
) -> OutputType[Any]:
    """JSON that a schema describes, of draft 4, 6, 7, 2019-09 or 2020-12 (the default). The value is that of
    ``json.loads``.

    whitespace: none, or a bounded amount between JSON's tokens. key_order: as the schema declares keys, others behind
    them, or any. lenient: leave out keywords that cannot be enforced; a value may then break
    them, and nothing checks it. Otherwise the first use raises UnsupportedSchema(path, keyword, reason) for them;
    UnsatisfiableConstraint where no value exists.
    """
    if whitespace not in ("compact", "flexible") or key_order not in ("schema", "any"):
        raise ValueError("fc.json_schema: whitespace is 'compact' or 'flexible', key_order is 'schema' or 'any'")
    style = Style(flexible=whitespace == "flexible", ordered=key_order == "schema")
    return OutputType(
        "json_schema(...)",
        json.loads,
        machine=lambda: compile_schema(schema, style=style, lenient=lenient).machine,
        partial=_partial_json,
    )
