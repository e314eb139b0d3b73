"""From shapes to the parts of a machine: automata for scalars, layouts for objects and arrays, nodes for references."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations

import numpy as np

from ..errors import InvalidRegex, UnsatisfiableConstraint, UnsupportedSchema
from . import array_part, object_layout, object_part
from .byte_dfa import ByteDFA, compile_pattern, restricted
from .choices import compile_choices
from .dfa_algebra import MANY, combine, conjunction, num_words, union
from .json_numbers import number_automaton, spellings
from .machine import FAR, Config, Part, config
from .schema_documents import ANY, Key
from .schema_expand import Expander
from .schema_shapes import Arr, Bool, Kind, Null, Number, Obj, Shape, Str, covers, holds, holds_text
from .string_part import String
from .text_parts import Node, Text
from .utf8_automata import UNIVERSAL

MOST_NODES = 20_000
"""Values of different kinds that one schema may come to."""

MOST_ARMS = 100
"""Kinds of objects that may have to be told apart while one value is read."""

_MOST_CLAIMS = 5
_MOST_CHARS = 4_000
"""Characters that a length limit beside a pattern may have."""

_SPACES = Text(compile_pattern(r"(?:[ \t]{0,2}|\r?\n[ \t]{0,80})"))
"""White space where it may stand: up to two blanks, or one line end and an indentation."""


@dataclass(frozen=True, slots=True)
class Style:
    """How values are written."""

    flexible: bool = False
    """Whether white space may stand between JSON's tokens."""
    ordered: bool = True
    """Whether keys come in the schema's order."""
    plain_integers: bool = False
    """Whether integers are written without ``.0``."""


class Builder:
    """Builds the parts of one schema."""

    def __init__(self, expander: Expander, style: Style) -> None:
        self.expander = expander
        self.style = style
        self._nodes: dict[Key, Node] = {}
        self._parts: dict[Shape, tuple[Part, object] | None] = {}
        self._waiting: list[Key] = []

    def build(self, key: Key) -> Node:
        """The node of the values that satisfy ``key``, with all that it refers to."""
        start = self.node(key)
        while self._waiting:
            key = self._waiting.pop()
            node = self._nodes[key]
            literals: set[bytes] = set()
            for shape in self._needed(self.expander.shapes(key)):
                texts = self._texts(shape)
                if texts is not None:
                    literals |= texts
                    continue
                part = self._part(shape)
                if part is not None:
                    node.arms.append(part)
            if literals:
                node.arms.insert(0, (Text(compile_choices(sorted(literals))), 0))
            if len(self._nodes) > MOST_NODES:
                raise UnsupportedSchema("#", "schema", f"it comes to more than {MOST_NODES:,} kinds of values")
        self._settle()
        return start

    def _needed(self, shapes: Sequence[Shape]) -> list[Shape]:
        """The shapes without objects that others cover: each is read beside the others until the text tells them apart.

        Raises UnsupportedSchema where too many are left.
        """
        objects = [shape for shape in shapes if isinstance(shape, Obj)]
        kept: list[Obj] = []
        for shape in sorted(objects, key=lambda one: (len(one.required), len(one.claims), len(one.named))):
            if not any(covers(wide, shape, ordered=self.style.ordered) for wide in kept):
                kept.append(shape)
        if len(kept) > MOST_ARMS:
            raise UnsupportedSchema("#", "anyOf", f"more than {MOST_ARMS} kinds of objects stand for one value")
        return [shape for shape in shapes if not isinstance(shape, Obj) or shape in kept]

    def node(self, key: Key) -> Node:
        """The node of ``key``; its arms are filled in by ``build``."""
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = Node()
            if not self.expander.never <= key:
                self._waiting.append(key)
        return found

    def spaced(self, one: Config) -> Config:
        """``one`` behind optional white space."""
        return config(_SPACES, 0, one) if self.style.flexible else one

    def _settle(self) -> None:
        """Find the length of every node's shortest text: relaxation until nothing gets shorter."""
        changed = True
        while changed:
            changed = False
            for node in self._nodes.values():
                best = min((part.min_bytes for part, _ in node.arms), default=FAR)  # type: ignore[attr-defined]
                if best < node.min_bytes:
                    node.min_bytes = best
                    changed = True
        for part in self._parts.values():
            if part is not None and isinstance(part[0], object_part.Object):
                part[0].settle()
        for node in self._nodes.values():
            node.arms = [arm for arm in node.arms if arm[0].min_bytes < FAR]  # type: ignore[attr-defined]  # every part

    # -- scalars -----------------------------------------------------------------------------------------------------

    def _texts(self, shape: Shape) -> set[bytes] | None:
        """All texts of a shape that lists its values."""
        if isinstance(shape, Null):
            return {b"null"}
        if isinstance(shape, Bool):
            return {b"true" if value else b"false" for value in shape.values}
        if isinstance(shape, Number) and shape.only is not None:
            plain = self.style.plain_integers
            return {
                text.encode()
                for value in shape.only
                if holds(shape, value)
                for text in spellings(int(value) if value.denominator == 1 else float(value), plain_integers=plain)
            }
        if isinstance(shape, Str) and shape.only is not None:
            return {text for value in shape.only if holds_text(shape, value) for text in spelt(value)}
        return None

    def _part(self, shape: Shape) -> tuple[Part, object] | None:
        if shape not in self._parts:
            self._parts[shape] = None  # a shape inside itself goes through a node, so this is never read early
            self._parts[shape] = self._made(shape)
        return self._parts[shape]

    def _made(self, shape: Shape) -> tuple[Part, object] | None:
        try:
            if isinstance(shape, Number):
                return Text(self._number(shape)), 0
            if isinstance(shape, Str):
                return self._string(shape), None
        except UnsatisfiableConstraint:
            return None
        except InvalidRegex as error:
            raise UnsupportedSchema("#", "number" if isinstance(shape, Number) else "pattern", str(error)) from error
        if isinstance(shape, Obj):
            part = self._object(shape)
            return None if part is None else (part, part.initial)
        assert isinstance(shape, Arr)
        array = self._array(shape)
        return None if array is None else (array, array.initial)

    def _number(self, shape: Number) -> ByteDFA:
        plain = self.style.plain_integers
        if not (shape.unlike or shape.not_multiples or shape.not_integer):
            return number_automaton(shape.bounds, shape.multiples, plain_integers=plain)
        # Without exponents, so that a value's spellings differ by trailing zeros only.
        wanted = [number_automaton(shape.bounds, shape.multiples, plain_integers=plain), _DECIMALS()]
        unwanted = [
            number_automaton(replace(shape.bounds, integer=False), frozenset({factor}), plain_integers=False)
            for factor in shape.not_multiples
        ]
        if shape.not_integer:
            unwanted.append(compile_pattern(r"-?[0-9]+(?:\.0+)?"))
        for value in shape.unlike:
            exact = replace(shape.bounds, integer=False, low=value, low_open=False, high=value, high_open=False)
            unwanted.append(conjunction([number_automaton(exact, frozenset(), plain_integers=False), _DECIMALS()]))
        return conjunction(wanted, unwanted)

    def _value_automaton(self, shape: Str) -> ByteDFA:
        """The automaton of a string's values. Raises InvalidRegex where it would be too large."""
        if shape.only is not None:
            return compile_choices(value.encode() for value in shape.only if holds_text(shape, value))
        wanted = sorted(shape.wanted, key=lambda dfa: dfa.num_states)
        unwanted = list(shape.unwanted)
        texts = [value.encode("utf-8", "surrogatepass") for value in shape.unlike]
        if texts:
            unwanted.append(compile_choices(texts))
        if shape.low or shape.high is not None:
            if (shape.high or shape.low) > _MOST_CHARS:
                raise InvalidRegex(f"a length over {_MOST_CHARS:,} beside a pattern is not enforced")
            wanted.append(length_automaton(shape.low, shape.high))
        if shape.wanted or shape.unwanted:
            wanted.append(_PATTERNED())
        return conjunction(wanted or [UNIVERSAL], unwanted)

    def _string(self, shape: Str) -> String:
        if not (shape.wanted or shape.unwanted or shape.unlike):
            return String(UNIVERSAL, min_chars=shape.low, max_chars=shape.high, free=True)
        # The greatest length is counted beside the automaton, which holds the least: the shortest rest decides.
        dfa = self._value_automaton(replace(shape, high=None))
        string = _string_of(dfa, shape.high)
        if shape.high is not None and string.least_chars > shape.high:
            raise UnsatisfiableConstraint("no string is so short")
        return string

    def strings(self, key: Key) -> ByteDFA | None:
        """The automaton of the strings that satisfy ``key``; None if there are none."""
        arms = []
        for shape in self.expander.shapes(key):
            if isinstance(shape, Str):
                try:
                    arms.append(self._value_automaton(shape))
                except UnsatisfiableConstraint:
                    continue
        return union(arms) if arms else None

    # -- objects -----------------------------------------------------------------------------------------------------

    def _object(self, shape: Obj) -> object_part.Object | None:
        claims = sorted(shape.claims, key=repr)
        if len(claims) > _MOST_CLAIMS:
            raise UnsupportedSchema("#", "not", f"more than {_MOST_CLAIMS} keys that must be somewhere in one object")
        layout = object_layout.Layout(low=shape.low, high=shape.high, ordered=self.style.ordered)
        layout.claims = (1 << len(claims)) - 1
        declared = dict.fromkeys(name for name, _ in shape.named)
        names = [*declared, *sorted(shape.required - declared.keys())]
        for i, name in enumerate(names):
            value = self.expander.value_of(shape, name)
            held = [1 << j if self.expander.is_of_kind(kind, name) else 0 for j, (kind, _) in enumerate(claims)]
            options = self._options(value, held, [key for _, key in claims])
            if name in shape.required:
                if not options:
                    return None
                layout.required |= 1 << i
            layout.names.append(name)
            layout.options.append(options)
        layout.excluded = frozenset(name.encode("utf-8", "surrogatepass") for name in names)
        self._further_keys(shape, layout, [(kind, key) for kind, key in claims])
        return object_part.Object(layout, spelt, self.spaced)

    def _options(self, value: Key, held: Sequence[int], claims: Sequence[Key]) -> object_layout.Options:
        """The ways to give a key a value: for each set of claims that it may settle, the value."""
        if self.expander.never <= value:
            return ()
        bits = [bit for bit in held if bit]
        options = []
        for size in range(len(bits) + 1):
            for chosen in combinations(bits, size):
                key = value.union(*(claims[bit.bit_length() - 1] for bit in chosen))
                if not self.expander.never <= key:
                    options.append((sum(chosen), self.node(key)))
        return tuple(options)

    def _further_keys(self, shape: Obj, layout: object_layout.Layout, claims: Sequence[tuple[Kind, Key]]) -> None:
        base = UNIVERSAL
        if shape.texts:
            found = self.strings(shape.texts)
            if found is None:
                return
            base = found
        patterns = sorted(
            {pattern for pattern, _ in shape.patterns}
            | {pattern for kind, _ in [*shape.extras, *claims] for pattern in kind.patterns}
            | {kind.pattern for kind, _ in claims if kind.pattern is not None}
        )
        dfas: list[ByteDFA | None] = [self.expander._assertions.pattern(pattern) for pattern in patterns]
        texts = [kind.text for kind, _ in claims if kind.text is not None]
        text_dfas = [self.strings(text) for text in texts]
        parts = [dfa for dfa in [*dfas, *text_dfas] if dfa is not None]
        required = [base, _PATTERNED()] if parts and base is UNIVERSAL else [base]
        table, states = combine(required, parts) if parts else (base.table, np.arange(base.num_states)[:, None])
        accepting = (
            np.logical_and.reduce([dfa.accepting[states[:, i]] for i, dfa in enumerate(required)])
            if parts
            else base.accepting
        )
        # What every ending state says: the patterns that match, the claims that it may settle.
        kinds: dict[tuple[Key, tuple[int, ...]], int] = {}
        labels = np.full(len(table), -1, dtype=np.int32)
        named = [index for index, dfa in enumerate([*dfas, *text_dfas]) if dfa is not None]
        signatures: dict[tuple[bool, ...], int] = {}
        for state in np.flatnonzero(accepting).tolist():
            flags = [False] * (len(dfas) + len(text_dfas))
            for column, index in enumerate(named):
                at = int(states[state, len(required) + column])
                flags[index] = at >= 0 and bool(parts[column].accepting[at])
            signature = tuple(flags)
            if signature not in signatures:
                matched = {pattern for pattern, flag in zip(patterns, flags, strict=False) if flag}
                key: Key = ANY
                for pattern, value in shape.patterns:
                    if pattern in matched:
                        key |= value
                for kind, value in shape.extras:
                    if not kind.patterns & matched:
                        key |= value
                held = []
                for j, (kind, _) in enumerate(claims):
                    if kind.pattern is not None:
                        inside = kind.pattern in matched
                    elif kind.text is not None:
                        inside = flags[len(dfas) + texts.index(kind.text)]
                    else:
                        inside = not kind.patterns & matched
                    held.append(1 << j if inside else 0)
                if self.expander.never <= key:
                    signatures[signature] = -1
                else:
                    found_kind = kinds.setdefault((key, tuple(held)), len(kinds))
                    if found_kind == len(layout.other_options):
                        layout.other_options.append(self._options(key, held, [value for _, value in claims]))
                    signatures[signature] = found_kind
            labels[state] = signatures[signature]
        if not (labels >= 0).any():
            layout.other_options = []
            return
        if parts or (labels[accepting] < 0).any():
            ends = labels >= 0
            try:
                kept = object_layout.labelled(table, ends, labels)
            except UnsatisfiableConstraint:
                layout.other_options = []
                return
            layout.others, layout.labels = kept
        else:
            layout.others, layout.labels = base, labels
        self._names_of_finite(layout)

    def _names_of_finite(self, layout: object_layout.Layout) -> None:
        """A few further keys that can all be listed stay as they are: the automaton knows which are left."""
        assert layout.others is not None
        if int(num_words(layout.others)[0]) < MANY and not any(layout.other_options):
            layout.others = None

    # -- arrays ------------------------------------------------------------------------------------------------------

    def _array(self, shape: Arr) -> array_part.Array | None:
        if shape.not_unique:
            raise UnsupportedSchema("#", "uniqueItems", "that an array breaks it is not enforced")
        if len(shape.counts) > 3:
            raise UnsupportedSchema("#", "contains", "more than three kinds of items to count in one array")
        counts = sorted(shape.counts, key=repr)
        layout = array_part.Layout(low=shape.low, high=shape.high)
        layout.counts = [(low, high) for _, _, low, high in counts]
        if any(high is not None and low > high for low, high in layout.counts):
            return None
        prefix, rest = list(shape.prefix), shape.rest
        layout.prefix = [self._item_options(key, counts) for key in prefix]
        layout.rest = self._item_options(rest, counts)
        for i, options in enumerate(layout.prefix):
            if not options:
                layout.high = i if layout.high is None else min(layout.high, i)
        if not layout.rest:
            layout.high = len(prefix) if layout.high is None else min(layout.high, len(prefix))
        if layout.high is not None:
            if layout.low > layout.high:
                return None
            layout.prefix = layout.prefix[: layout.high]
        if shape.unique and (layout.high is None or layout.high > 1):
            layout.distinct = self._distinct(shape, layout)
        return array_part.Array(layout, self.spaced)

    def _item_options(self, key: Key, counts: Sequence[tuple[Key, Key, int, int | None]]) -> array_part.Options:
        options = []
        for size in range(len(counts) + 1):
            for chosen in combinations(range(len(counts)), size):
                item = key
                for i, (inside, outside, _, high) in enumerate(counts):
                    if i in chosen:
                        item = item | inside
                    elif high is not None:
                        item = item | outside
                if not self.expander.is_never(item, 1):
                    options.append((tuple(int(i in chosen) for i in range(len(counts))), self.node(item)))
        return tuple(options)

    def _distinct(self, shape: Arr, layout: array_part.Layout) -> array_part.Distinct:
        """Items as strings that are kept to tell them apart. Raises UnsupportedSchema for other items."""
        shapes = self.expander.shapes(shape.rest)
        if shape.prefix or shape.counts or not shapes or not all(isinstance(one, Str) for one in shapes):
            raise UnsupportedSchema("#", "uniqueItems", "it is enforced on strings only")
        dfa = self.strings(shape.rest)
        if dfa is None:
            raise UnsupportedSchema("#", "uniqueItems", "there are no such items")
        words = num_words(dfa)[0]
        if words < MANY:
            if layout.low > words:
                raise UnsupportedSchema("#", "minItems", f"there are only {words} different items")
            layout.high = words if layout.high is None else min(layout.high, words)
        return array_part.Distinct(dfa, free=dfa is UNIVERSAL, tracked=True)


@lru_cache(maxsize=256)
def _string_of(dfa: ByteDFA, max_chars: int | None) -> String:
    return String(dfa, max_chars=max_chars)


@lru_cache(maxsize=1)
def _DECIMALS() -> ByteDFA:
    return compile_pattern(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")


@lru_cache(maxsize=1)
def _PATTERNED() -> ByteDFA:
    """Texts without the control characters that patterns never match."""
    table = UNIVERSAL.table.copy()
    table[0, 1:5] = -1
    return ByteDFA(table, UNIVERSAL.accepting)


@lru_cache(maxsize=64)
def length_automaton(low: int, high: int | None) -> ByteDFA:
    """Texts of so many characters."""
    last = high if high is not None else low
    size = UNIVERSAL.num_states
    table = np.full(((last + 1) * size, 256), -1, dtype=np.int32)
    for count in range(last + 1):
        rows = UNIVERSAL.table
        for state in range(size):
            # a lead byte begins a character, the one after which the count is one more
            after = np.where(rows[state] == 0, min(count + 1, last) * size, rows[state] + count * size)
            if count == last and high is not None and state == 0:
                continue
            table[count * size + state] = np.where(rows[state] < 0, -1, after)
    accepting = np.zeros(len(table), dtype=np.bool_)
    accepting[[count * size for count in range(low, last + 1)]] = True
    return restricted(table, accepting)


def spelt(text: str) -> list[bytes]:
    """A fixed string in JSON: characters as themselves, and with those beyond ASCII escaped."""
    found = [json.dumps(text)]
    try:
        text.encode()
        found.append(json.dumps(text, ensure_ascii=False))
    except UnicodeEncodeError:
        found = []
    return sorted({one.encode() for one in found})
