"""The keywords of JSON Schema: what each asserts as shapes, and what it is to break one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRegex, UnsatisfiableConstraint, UnsupportedSchema
from . import formats
from .byte_dfa import ByteDFA
from .json_numbers import NumberRange, fraction_of
from .schema_documents import ANY, AnyOf, Entry, Key, Literal
from .schema_shapes import TOP, Arr, Bool, Kind, Null, Number, Obj, Seen, Shape, Str, both, product
from .search_patterns import searched

if TYPE_CHECKING:
    from .schema_expand import Expander

_TYPES = ("null", "boolean", "number", "string", "object", "array")
_CLASSES: dict[str, type] = {
    "null": Null, "boolean": Bool, "number": Number, "string": Str, "object": Obj, "array": Arr,
}  # fmt: skip
_MOST_ONE_OF = 64
_MOST_SPLIT = 7


def _not(literal: Literal) -> Key:
    return frozenset({(literal[0], not literal[1])})


def _is(literal: Literal) -> Key:
    return frozenset({literal})


def _others(kept: type) -> list[Shape]:
    return [shape for shape in TOP if not isinstance(shape, kept)]


class Assertions:
    """Reads the keywords of schemas for an ``Expander``."""

    def __init__(self, expander: Expander) -> None:
        self._expander = expander
        self._documents = expander.documents

    # -- reading -----------------------------------------------------------------------------------------------------

    def get(self, entry: Entry, keyword: str) -> Any:
        """The value of a keyword, None where it is not there or its draft has a ``$ref`` beside it hide it."""
        schema = entry.schema
        if keyword != "$ref" and 0 < entry.draft < 2019 and "$ref" in schema:
            return None
        return schema.get(keyword)

    def _wrong(self, entry: Entry, keyword: str, wanted: str) -> UnsupportedSchema:
        return UnsupportedSchema(entry.path, keyword, f"it must be {wanted}, not {entry.schema[keyword]!r:.80}")

    def _count(self, entry: Entry, keyword: str) -> int | None:
        value = self.get(entry, keyword)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value != int(value):
            raise self._wrong(entry, keyword, "an integer of at least 0")
        return int(value)

    def _number(self, entry: Entry, keyword: str) -> Fraction | None:
        value = self.get(entry, keyword)
        if value is None or isinstance(value, bool):
            return None
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise self._wrong(entry, keyword, "a number")
        return fraction_of(value)

    def _mapping(self, entry: Entry, keyword: str) -> Mapping[str, Any]:
        value = self.get(entry, keyword)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self._wrong(entry, keyword, "an object")
        return value

    def _list(self, entry: Entry, keyword: str) -> Sequence[Any] | None:
        value = self.get(entry, keyword)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise self._wrong(entry, keyword, "an array")
        return value

    def pattern(self, pattern: str, entry: Entry | None = None) -> ByteDFA | None:
        """The automaton of a pattern; None if no text matches it. Raises UnsupportedSchema."""
        try:
            return searched(pattern)
        except UnsatisfiableConstraint:
            return None
        except InvalidRegex as error:
            raise UnsupportedSchema(entry.path if entry else "#", "pattern", str(error)) from error

    def _types(self, entry: Entry) -> tuple[set[str], bool]:
        """The JSON types that are allowed, and whether numbers must be integers."""
        value = self.get(entry, "type")
        if value is None:
            return set(_TYPES), False
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list | tuple):
            raise self._wrong(entry, "type", "a type's name or a list of them")
        found: set[str] = set()
        for name in names:
            if name == "any" and entry.draft in (0, 4):
                return set(_TYPES), False
            if name not in (*_TYPES, "integer"):
                raise UnsupportedSchema(entry.path, "type", f"there is no type {name!r:.80}")
            found.add("number" if name == "integer" else name)
        return found, "integer" in names and "number" not in names

    # -- what a schema asserts by itself -------------------------------------------------------------------------------

    def own(self, entry: Entry, track: bool) -> list[Shape]:
        """One shape for each type, of all keywords that look at values directly."""
        self._check_known(entry)
        types, integer = self._types(entry)
        found: list[Shape] = []
        if "null" in types:
            found.append(Null())
        if "boolean" in types:
            found.append(Bool())
        if "number" in types:
            number = self._number_shape(entry, integer)
            if not number.bounds.empty:
                found.append(number)
        if "string" in types:
            found.extend(self._string_shapes(entry))
        if "object" in types:
            found.append(self._object_shape(entry, track))
        if "array" in types:
            found.append(self._array_shape(entry, track))
        values = self._values(entry)
        if values is not None:
            found = product(found, self._value_shapes(entry, values))
        return found

    def _check_known(self, entry: Entry) -> None:
        for keyword in ("extends", "disallow", "divisibleBy"):
            if keyword in entry.schema:
                self._expander.refuse(entry, keyword, "this keyword of draft 3 is not enforced")

    def _values(self, entry: Entry) -> list[Any] | None:
        enum = self._list(entry, "enum")
        has_const = "const" in entry.schema and self.get(entry, "const") is entry.schema["const"] and entry.draft != 4
        if enum is None and not has_const:
            return None
        if not has_const:
            return list(enum or ())
        const = entry.schema["const"]
        return [const] if enum is None or any(_same(const, value) for value in enum) else []

    def _value_shapes(self, entry: Entry, values: Iterable[Any]) -> list[Shape]:
        """The shapes of exactly some JSON values."""
        found: list[Shape] = []
        bools: set[bool] = set()
        numbers: set[Fraction] = set()
        texts: set[str] = set()
        for value in values:
            if value is None:
                found.append(Null())
            elif isinstance(value, bool):
                bools.add(value)
            elif isinstance(value, int | float):
                if not math.isfinite(value):
                    raise UnsupportedSchema(entry.path, "enum", f"{value!r} is no JSON value")
                numbers.add(fraction_of(value))
            elif isinstance(value, str):
                texts.add(value)
            elif isinstance(value, Mapping):
                found.append(
                    Obj(
                        named=tuple((name, self._const(entry, part)) for name, part in value.items()),
                        extras=frozenset({(Kind(names=frozenset(value)), self._expander.never)}),
                        required=frozenset(value),
                    )
                )
            elif isinstance(value, list | tuple):
                found.append(
                    Arr(
                        prefix=tuple(self._const(entry, part) for part in value),
                        rest=self._expander.never,
                        low=len(value),
                        high=len(value),
                    )
                )
            else:
                raise UnsupportedSchema(entry.path, "enum", f"{value!r:.80} is no JSON value")
        if bools:
            found.append(Bool(frozenset(bools)))
        if numbers:
            found.append(Number(only=frozenset(numbers)))
        if texts:
            found.append(Str(only=frozenset(texts)))
        return found

    def _const(self, entry: Entry, value: Any) -> Key:
        return _is(self._documents.made(_Constant({"const": value}), replace(entry, draft=2020)))

    def _number_shape(self, entry: Entry, integer: bool) -> Number:
        low, high = self._number(entry, "minimum"), self._number(entry, "maximum")
        low_open = self.get(entry, "exclusiveMinimum") is True and low is not None
        high_open = self.get(entry, "exclusiveMaximum") is True and high is not None
        above, below = self._number(entry, "exclusiveMinimum"), self._number(entry, "exclusiveMaximum")
        if above is not None and (low is None or above >= low):
            low, low_open = above, True
        if below is not None and (high is None or below <= high):
            high, high_open = below, True
        factor = self._number(entry, "multipleOf")
        if factor is not None and factor <= 0:
            raise self._wrong(entry, "multipleOf", "more than 0")
        return Number(
            NumberRange(integer, low, low_open, high, high_open, integer and entry.draft == 4),
            frozenset() if factor is None else frozenset({factor}),
        )

    def _format(self, entry: Entry) -> ByteDFA | None:
        name = self.get(entry, "format")
        if not isinstance(name, str):
            return None
        if name in formats.REFUSED:
            self._expander.refuse(entry, "format", f"{name!r} is not enforced")
            return None
        return formats.format_automaton(name) if formats.is_known(name) else None

    def _string_shapes(self, entry: Entry) -> list[Shape]:
        low, high = self._count(entry, "minLength") or 0, self._count(entry, "maxLength")
        wanted: set[ByteDFA] = set()
        pattern = self.get(entry, "pattern")
        if pattern is not None:
            if not isinstance(pattern, str):
                raise self._wrong(entry, "pattern", "a string")
            dfa = self._pattern_of(entry, pattern, "pattern")
            if dfa is False:
                return []
            if isinstance(dfa, ByteDFA):
                wanted.add(dfa)
        form = self._format(entry)
        if form is not None:
            wanted.add(form)
        if high is not None and low > high:
            return []
        return [Str(low, high, frozenset(wanted))]

    def _pattern_of(self, entry: Entry, pattern: str, keyword: str) -> ByteDFA | bool:
        """The automaton; False if no text matches; True if it is only checked afterwards."""
        try:
            return searched(pattern)
        except UnsatisfiableConstraint:
            return False
        except InvalidRegex as error:
            self._expander.refuse(entry, keyword, str(error))
            return True

    def _required(self, entry: Entry) -> frozenset[str]:
        value = self.get(entry, "required")
        if value is None or (isinstance(value, bool) and entry.draft in (0, 4)):
            return frozenset()
        if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
            raise self._wrong(entry, "required", "an array of names")
        return frozenset(value)

    def _declared(self, entry: Entry) -> tuple[dict[str, Literal], dict[str, Literal]]:
        child = self._documents.child
        named = {
            name: child(entry, schema, "properties", name)
            for name, schema in self._mapping(entry, "properties").items()
        }
        patterns = {}
        for pattern, schema in self._mapping(entry, "patternProperties").items():
            if self._pattern_of(entry, pattern, "patternProperties") is not True:
                patterns[pattern] = child(entry, schema, "patternProperties", pattern)
        return named, patterns

    def _extra(self, entry: Entry) -> Literal | None:
        schema = self.get(entry, "additionalProperties")
        return None if schema is None else self._documents.child(entry, schema, "additionalProperties")

    def _names(self, entry: Entry) -> Literal | None:
        schema = self.get(entry, "propertyNames")
        return None if schema is None or entry.draft == 4 else self._documents.child(entry, schema, "propertyNames")

    def _object_shape(self, entry: Entry, track: bool) -> Obj:
        named, patterns = self._declared(entry)
        extra, names = self._extra(entry), self._names(entry)
        kind = Kind(names=frozenset(named), patterns=frozenset(patterns))
        shape = Obj(
            named=tuple((name, _is(literal)) for name, literal in named.items()),
            patterns=frozenset((pattern, _is(literal)) for pattern, literal in patterns.items()),
            extras=frozenset() if extra is None else frozenset({(kind, _is(extra))}),
            texts=ANY if names is None else _is(names),
            required=self._required(entry),
            low=self._count(entry, "minProperties") or 0,
            high=self._count(entry, "maxProperties"),
        )
        if track:
            shape = replace(shape, seen=Seen(kind.names or frozenset(), kind.patterns, all=extra is not None))
        return shape

    def _items(self, entry: Entry) -> tuple[list[Literal], Literal | None]:
        """Schemas of the first items, and of all further ones."""
        child = self._documents.child
        items = self.get(entry, "items")
        if isinstance(items, list | tuple):
            first = [child(entry, schema, "items", i) for i, schema in enumerate(items)]
            more = self.get(entry, "additionalItems")
            return first, None if more is None else child(entry, more, "additionalItems")
        listed = self._list(entry, "prefixItems") if entry.draft in (0, 2020) else None
        first = [child(entry, schema, "prefixItems", i) for i, schema in enumerate(listed or ())]
        return first, None if items is None else child(entry, items, "items")

    def _contains(self, entry: Entry) -> tuple[Literal, int, int | None] | None:
        schema = self.get(entry, "contains")
        if schema is None or entry.draft == 4:
            return None
        bounded = entry.draft == 0 or entry.draft >= 2019
        low = self._count(entry, "minContains") if bounded else None
        high = self._count(entry, "maxContains") if bounded else None
        return self._documents.child(entry, schema, "contains"), 1 if low is None else low, high

    def _array_shape(self, entry: Entry, track: bool) -> Arr:
        first, rest = self._items(entry)
        contains = self._contains(entry)
        shape = Arr(
            prefix=tuple(_is(literal) for literal in first),
            rest=ANY if rest is None else _is(rest),
            low=self._count(entry, "minItems") or 0,
            high=self._count(entry, "maxItems"),
            counts=frozenset()
            if contains is None
            else frozenset({(_is(contains[0]), _not(contains[0]), contains[1], contains[2])}),
            unique=self.get(entry, "uniqueItems") is True,
        )
        if track:
            counted = (
                frozenset({_is(contains[0])}) if contains is not None and entry.draft in (0, 2020) else frozenset()
            )
            shape = replace(shape, seen=Seen(prefix=len(first), items=counted, all=rest is not None))
        return shape

    # -- what it is to break it ----------------------------------------------------------------------------------------

    def broken(self, entry: Entry) -> Iterable[Shape]:
        """Values that break a keyword which looks at values directly."""
        self._check_known(entry)
        types, integer = self._types(entry)
        for name in _TYPES:
            if name not in types:
                yield from (shape for shape in TOP if isinstance(shape, _CLASSES[name]))
        if integer and "number" in types:
            yield Number(not_integer=True)
        values = self._values(entry)
        if values is not None:
            yield from self._unlike(entry, values)
        number = self._number_shape(entry, False)
        bounds = number.bounds
        if bounds.low is not None:
            yield Number(NumberRange(high=bounds.low, high_open=not bounds.low_open))
        if bounds.high is not None:
            yield Number(NumberRange(low=bounds.high, low_open=not bounds.high_open))
        for factor in number.multiples:
            yield Number(not_multiples=frozenset({factor}))
        yield from self._broken_strings(entry)
        yield from self._broken_objects(entry)
        yield from self._broken_arrays(entry)

    def _unlike(self, entry: Entry, values: list[Any]) -> Iterable[Shape]:
        shapes = self._value_shapes(entry, values)
        if not any(isinstance(shape, Null) for shape in shapes):
            yield Null()
        bools = frozenset({True, False}).difference(*(s.values for s in shapes if isinstance(s, Bool)))
        if bools:
            yield Bool(bools)
        yield Number(unlike=frozenset().union(*(s.only or () for s in shapes if isinstance(s, Number))))
        yield Str(unlike=frozenset().union(*(s.only or () for s in shapes if isinstance(s, Str))))
        for kind in (Obj, Arr):
            found: list[Shape] = [kind()]
            for shape in shapes:
                if isinstance(shape, kind):
                    found = product(found, self._other_than(shape))
            yield from found

    def _other_than(self, shape: Shape) -> Iterable[Shape]:
        """Objects or arrays that differ from a constant one."""
        if isinstance(shape, Obj):
            for name, key in shape.named:
                yield Obj(named=((name, self._expander.never),))
                for literal in key:
                    yield Obj(named=((name, _not(literal)),), required=frozenset({name}))
            yield Obj(claims=frozenset({(kind, ANY) for kind, _ in shape.extras}))
        elif isinstance(shape, Arr):
            if shape.low:
                yield Arr(high=shape.low - 1)
            yield Arr(low=shape.low + 1)
            for i, key in enumerate(shape.prefix):
                for literal in key:
                    yield Arr(prefix=(*(ANY,) * i, _not(literal)), low=i + 1)

    def _broken_strings(self, entry: Entry) -> Iterable[Shape]:
        low, high = self._count(entry, "minLength"), self._count(entry, "maxLength")
        if low:
            yield Str(high=low - 1)
        if high is not None:
            yield Str(low=high + 1)
        pattern = self.get(entry, "pattern")
        if isinstance(pattern, str):
            dfa = self._pattern_of(entry, pattern, "pattern")
            if dfa is False:
                yield Str()
            elif isinstance(dfa, ByteDFA):
                yield Str(unwanted=frozenset({dfa}))
        form = self._format(entry)
        if form is not None:
            yield Str(unwanted=frozenset({form}))

    def _broken_objects(self, entry: Entry) -> Iterable[Shape]:
        named, patterns = self._declared(entry)
        for name in sorted(self._required(entry)):
            yield Obj(named=((name, self._expander.never),))
        for name, literal in named.items():
            yield Obj(named=((name, _not(literal)),), required=frozenset({name}))
        for pattern, literal in patterns.items():
            yield Obj(claims=frozenset({(Kind(pattern=pattern), _not(literal))}))
        extra, names = self._extra(entry), self._names(entry)
        if extra is not None:
            kind = Kind(names=frozenset(named), patterns=frozenset(patterns))
            yield Obj(claims=frozenset({(kind, _not(extra))}))
        if names is not None:
            yield Obj(claims=frozenset({(Kind(text=_not(names)), ANY)}))
        low, high = self._count(entry, "minProperties"), self._count(entry, "maxProperties")
        if low:
            yield Obj(high=low - 1)
        if high is not None:
            yield Obj(low=high + 1)

    def _broken_arrays(self, entry: Entry) -> Iterable[Shape]:
        first, rest = self._items(entry)
        for i, literal in enumerate(first):
            yield Arr(prefix=(*(ANY,) * i, _not(literal)), low=i + 1)
        if rest is not None:
            prefix = (self._expander.never,) * len(first)
            if not first:
                yield Arr(counts=frozenset({(_not(rest), _is(rest), 1, None)}))
            else:
                del prefix
                self._expander.refuse(entry, "items", "that further items break it is not enforced")
        contains = self._contains(entry)
        if contains is not None:
            literal, low_count, high_count = contains
            if low_count > 0:
                yield Arr(counts=frozenset({(_is(literal), _not(literal), 0, low_count - 1)}))
            if high_count is not None:
                yield Arr(counts=frozenset({(_is(literal), _not(literal), high_count + 1, None)}))
        if self.get(entry, "uniqueItems") is True:
            yield Arr(not_unique=True)
        low, high = self._count(entry, "minItems"), self._count(entry, "maxItems")
        if low:
            yield Arr(high=low - 1)
        if high is not None:
            yield Arr(low=high + 1)

    # -- schemas applied to the same value -----------------------------------------------------------------------------

    def _parts(self, entry: Entry, keyword: str) -> list[Literal] | None:
        value = self._list(entry, keyword)
        if value is None:
            return None
        if not value:
            raise self._wrong(entry, keyword, "an array of at least one schema")
        return [self._documents.child(entry, schema, keyword, i) for i, schema in enumerate(value)]

    def _references(self, entry: Entry) -> list[Literal]:
        found = []
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            value = entry.schema.get(keyword)
            if value is not None and (keyword == "$ref" or entry.draft == 0 or entry.draft >= 2019):
                found.append(self._documents.resolve(entry, value, keyword))
        return found

    def _dependencies(self, entry: Entry) -> list[tuple[str, list[str] | Literal]]:
        found: list[tuple[str, list[str] | Literal]] = []
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, value in self._mapping(entry, keyword).items():
                if isinstance(value, str) and keyword == "dependencies":
                    found.append((name, [value]))
                elif isinstance(value, list | tuple):
                    found.append((name, [str(other) for other in value]))
                else:
                    found.append((name, self._documents.child(entry, value, keyword, name)))
        return found

    def applied(self, entry: Entry, track: bool) -> list[Callable[[], list[Shape]]]:
        """For each applied schema the shapes that satisfy it."""
        shapes = self._expander.shapes
        found: list[Callable[[], list[Shape]]] = []
        for literal in [*self._references(entry), *(self._parts(entry, "allOf") or ())]:
            found.append(partial(shapes, _is(literal), track=track))
        choices = self._parts(entry, "anyOf")
        if choices is not None:
            found.append(lambda: self._any(entry, choices, track))
        ones = self._parts(entry, "oneOf")
        if ones is not None:
            found.append(lambda: self._one(entry, ones, track))
        if self.get(entry, "not") is not None:
            refused = self._documents.child(entry, entry.schema["not"], "not")
            found.append(lambda: shapes(_not(refused)))
        condition = self._condition(entry)
        if condition is not None:
            test, then, otherwise = condition
            found.append(
                lambda: [*self._with(_is(test), then, track, track), *self._with(_not(test), otherwise, False, track)]
            )
        for name, needed in self._dependencies(entry):
            found.append(partial(self._dependent, name, needed, track))
        return found

    def _condition(self, entry: Entry) -> tuple[Literal, Literal | None, Literal | None] | None:
        if self.get(entry, "if") is None or entry.draft in (4, 6):
            return None
        child = self._documents.child
        parts = [
            child(entry, entry.schema[keyword], keyword) if keyword in entry.schema else None
            for keyword in ("then", "else")
        ]
        return child(entry, entry.schema["if"], "if"), parts[0], parts[1]

    def _with(self, test: Key, then: Literal | None, track_test: bool, track: bool) -> list[Shape]:
        found = self._expander.shapes(test, track=track_test)
        return found if then is None else product(found, self._expander.shapes(_is(then), track=track))

    def _dependent(self, name: str, needed: list[str] | Literal, track: bool) -> list[Shape]:
        absent = Obj(named=((name, self._expander.never),))
        present = Obj(required=frozenset({name}))
        if isinstance(needed, list):
            held: list[Shape] = [replace(present, required=frozenset({name, *needed}))]
            return [*_others(Obj), absent, *held]
        rest = self._expander.shapes(_is(needed), track=track)
        return [*_others(Obj), absent, *product([present], rest)]

    def _any(self, entry: Entry, choices: list[Literal], track: bool) -> list[Shape]:
        shapes = self._expander.shapes
        if not track:
            return list(dict.fromkeys(shape for literal in choices for shape in shapes(_is(literal))))
        if len(choices) > _MOST_SPLIT:
            raise UnsupportedSchema(entry.path, "anyOf", "too many choices beside an unevaluated keyword")
        found: list[Shape] = []
        for size in range(1, len(choices) + 1):
            for held in combinations(choices, size):
                arms: list[Shape] = list(TOP)
                for literal in choices:
                    arms = product(arms, shapes(_is(literal), track=True) if literal in held else shapes(_not(literal)))
                found.extend(arms)
        return found

    def _one(self, entry: Entry, choices: list[Literal], track: bool) -> list[Shape]:
        """Exactly one: each with the negation of all others that may hold beside it."""
        if len(choices) > _MOST_ONE_OF:
            raise UnsupportedSchema(entry.path, "oneOf", f"more than {_MOST_ONE_OF} choices")
        found: list[Shape] = []
        for i, literal in enumerate(choices):
            arms = self._expander.shapes(_is(literal), track=track)
            for j, other in enumerate(choices):
                if i != j and not self._expander.excludes([_is(literal), _is(other)]):
                    arms = [apart for arm in arms for apart in self._without(arm, other)]
            found.extend(arms)
        return list(dict.fromkeys(found))

    def _without(self, arm: Shape, other: Literal) -> list[Shape]:
        """The values of a shape that do not satisfy ``other``."""
        shapes = self._expander.shapes(_is(other))
        self._expander.spend(4 * len(shapes), other[0])
        meets = (both(arm, shape) for shape in shapes)
        if all(shape is None or self._expander.is_empty(shape, 3) for shape in meets):
            return [arm]
        broken = self._expander.shapes(_not(other))
        self._expander.spend(4 * len(broken), other[0])
        apart = product([arm], broken)
        return [shape for shape in apart if not self._expander.is_empty(shape, 2)]

    def applied_broken(self, entry: Entry) -> list[Callable[[], list[Shape]]]:
        """For each applied schema the shapes that do not satisfy it."""
        shapes = self._expander.shapes
        found: list[Callable[[], list[Shape]]] = []
        for literal in [*self._references(entry), *(self._parts(entry, "allOf") or ())]:
            found.append(partial(shapes, _not(literal)))
        choices = self._parts(entry, "anyOf")
        if choices is not None:
            found.append(lambda: shapes(frozenset().union(*(_not(literal) for literal in choices))))
        ones = self._parts(entry, "oneOf")
        if ones is not None:
            found.append(lambda: shapes(frozenset().union(*(_not(literal) for literal in ones))))
            for a, b in combinations(ones, 2):
                found.append(partial(shapes, _is(a) | _is(b)))
        if self.get(entry, "not") is not None:
            refused = self._documents.child(entry, entry.schema["not"], "not")
            found.append(lambda: shapes(_is(refused)))
        condition = self._condition(entry)
        if condition is not None:
            test, then, otherwise = condition
            if then is not None:
                found.append(lambda: shapes(_is(test) | _not(then)))
            if otherwise is not None:
                found.append(lambda: shapes(_not(test) | _not(otherwise)))
        for name, needed in self._dependencies(entry):
            if isinstance(needed, list):
                for other in needed:
                    shape = Obj(named=((other, self._expander.never),), required=frozenset({name}))
                    found.append(partial(list, [shape]))
            else:
                present = Obj(required=frozenset({name}))
                found.append(partial(self._present_but, present, _not(needed)))
        return found

    def _present_but(self, present: Shape, key: Key) -> list[Shape]:
        return product([present], self._expander.shapes(key))

    # -- what nothing else has evaluated -------------------------------------------------------------------------------

    def unevaluated(self, entry: Entry, shape: Shape) -> Shape:
        """A shape with the unevaluated keywords of its schema applied to what was not seen."""
        child = self._documents.child
        if isinstance(shape, Obj) and (rest := self.get(entry, "unevaluatedProperties")) is not None:
            if not shape.seen.all:
                kind = Kind(names=shape.seen.names, patterns=shape.seen.patterns)
                key = _is(child(entry, rest, "unevaluatedProperties"))
                shape = replace(shape, extras=shape.extras | {(kind, key)})
            return replace(shape, seen=Seen(all=True))
        if isinstance(shape, Arr) and (rest := self.get(entry, "unevaluatedItems")) is not None:
            if not shape.seen.all:
                key = _is(child(entry, rest, "unevaluatedItems"))
                if shape.seen.items:
                    choices = AnyOf((key, *sorted(shape.seen.items, key=sorted)))
                    key = _is(self._documents.made(choices, entry))
                length = max(len(shape.prefix), shape.seen.prefix)
                prefix = [shape.prefix[i] if i < len(shape.prefix) else shape.rest for i in range(length)]
                prefix = [part if i < shape.seen.prefix else part | key for i, part in enumerate(prefix)]
                shape = replace(shape, prefix=tuple(prefix), rest=shape.rest | key)
            return replace(shape, seen=Seen(all=True))
        return shape

    def unevaluated_broken(self, entry: Entry, number: int) -> Iterable[Shape]:
        """Values that satisfy all but an unevaluated keyword."""
        if 0 < entry.draft < 2019:
            return
        for keyword in ("unevaluatedProperties", "unevaluatedItems"):
            if self.get(entry, keyword) is None:
                continue
            rest = _Constant({name: value for name, value in entry.schema.items() if name != keyword})
            key = _is(self._documents.made(rest, entry))
            broken = _not(self._documents.child(entry, entry.schema[keyword], keyword))
            for shape in self._expander.shapes(key, track=True):
                if isinstance(shape, Obj) and keyword == "unevaluatedProperties" and not shape.seen.all:
                    kind = Kind(names=shape.seen.names, patterns=shape.seen.patterns)
                    yield replace(shape, claims=shape.claims | {(kind, broken)})
                if isinstance(shape, Arr) and keyword == "unevaluatedItems" and not shape.seen.all:
                    if shape.seen.prefix or shape.seen.items:
                        self._expander.refuse(entry, keyword, "that an array breaks it is not enforced")
                    counted = (broken, frozenset({(n, not s) for n, s in broken}), 1, None)
                    yield replace(shape, counts=shape.counts | {counted})


class _Constant(dict[str, Any]):
    """A schema made here. It is kept alive by its entry, so that its identity stays its own."""


def _same(a: Any, b: Any) -> bool:
    """Whether two JSON values are equal as JSON Schema has it: 1 and 1.0 are, 1 and true are not."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(value, b[name]) for name, value in a.items())
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)
