"""From schemas to shapes: what values satisfy a schema, and which do not, as a list of shapes for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import UnsupportedSchema
from .dfa_algebra import is_empty
from .schema_assertions import Assertions
from .schema_documents import ANY, AllOf, AnyOf, Documents, Entry, Key
from .schema_shapes import TOP, Arr, Kind, Obj, Seen, Shape, Str, impossible, product

MOST_SHAPES = 400
"""Alternatives that a schema may come to."""

MOST_WORK = 150_000
"""Pairs of alternatives that are brought together for one schema."""

_DEPTH = 3
"""Levels of a value that are looked into to find that two schemas exclude each other."""


class Busy(Exception):
    """A schema is being expanded already."""


class Expander:
    """Expands the schemas of a document. What cannot be enforced is refused, or noted where ``lenient``."""

    def __init__(self, documents: Documents, *, lenient: bool = False) -> None:
        self.documents = documents
        self.lenient = lenient
        self.unchecked: dict[str, UnsupportedSchema] = {}
        """What is checked only afterwards, by place and keyword."""
        self._known: dict[tuple[int, bool, bool], list[Shape]] = {}
        self._busy: set[tuple[int, bool, bool]] = set()
        self._keys: dict[Key, list[Shape]] = {}
        self._work = 0
        self._assertions = Assertions(self)
        self.never: Key = frozenset({(documents.never, True)})

    def refuse(self, entry: Entry, keyword: str, reason: str) -> None:
        """Raise UnsupportedSchema, or note it where ``lenient``."""
        error = UnsupportedSchema(entry.path, keyword, reason)
        if not self.lenient:
            raise error
        self.unchecked.setdefault(f"{entry.path} {keyword}", error)

    def shapes(self, key: Key, *, track: bool = False) -> list[Shape]:
        """The shapes of the values that satisfy all of ``key``."""
        if not track and key in self._keys:
            return self._keys[key]
        found: list[Shape] = list(TOP)
        if any((number, not positive) in key for number, positive in key):
            found = []
        for number, positive in sorted(key):
            if not found:
                break
            arms = self._literal(number, positive, track)
            self.spend(len(found) * len(arms), number)
            found = self._bounded(product(found, arms), number)
        if not track:
            self._keys[key] = found
        return found

    def spend(self, pairs: int, number: int) -> None:
        """Count work. Raises UnsupportedSchema once it is too much."""
        self._work += pairs
        if self._work > MOST_WORK:
            path = self.documents.entries[number].path
            raise UnsupportedSchema(path, "allOf", "its alternatives multiply beyond what is worked out")

    def _bounded(self, shapes: list[Shape], number: int) -> list[Shape]:
        if len(shapes) > MOST_SHAPES:
            shapes = [shape for shape in shapes if not self.is_empty(shape, 1)]
        if len(shapes) > MOST_SHAPES:
            entry = self.documents.entries[number]
            raise UnsupportedSchema(entry.path, "allOf", f"it comes to more than {MOST_SHAPES} alternatives")
        return shapes

    def _literal(self, number: int, positive: bool, track: bool) -> list[Shape]:
        spot = (number, positive, track)
        known = self._known.get(spot)
        if known is not None:
            return known
        if spot in self._busy:
            raise Busy(self.documents.entries[number].path)
        self._busy.add(spot)
        try:
            found = self._expand(number, positive, track)
        finally:
            self._busy.discard(spot)
        if not track:
            found = list(
                dict.fromkeys(replace(shape, seen=Seen()) if isinstance(shape, Obj | Arr) else shape for shape in found)
            )
        found = self._bounded(found, number)
        self._known[spot] = found
        return found

    def _expand(self, number: int, positive: bool, track: bool) -> list[Shape]:
        entry = self.documents.entries[number]
        schema = entry.schema
        if isinstance(schema, bool):
            return list(TOP) if schema == positive else []
        if isinstance(schema, AllOf):
            if positive:
                return self.shapes(schema.key, track=track)
            return [shape for part, sign in sorted(schema.key) for shape in self._literal(part, not sign, track)]
        if isinstance(schema, AnyOf):
            if positive:
                return [shape for key in schema.keys for shape in self.shapes(key, track=track)]
            found: list[Shape] = list(TOP)
            for key in schema.keys:
                arms = [shape for part, sign in sorted(key) for shape in self._literal(part, not sign, track)]
                found = self._bounded(product(found, arms), number)
            return found
        if positive:
            return self._all(entry, number, track)
        return self._none(entry, number)

    def _all(self, entry: Entry, number: int, track: bool) -> list[Shape]:
        late = "unevaluatedProperties" in entry.schema or "unevaluatedItems" in entry.schema
        inner = track or (late and (entry.draft == 0 or entry.draft >= 2019))
        found: list[Shape] = self._assertions.own(entry, inner)
        for arms in self._assertions.applied(entry, inner):
            found = self._bounded(product(found, arms()), number)
        if inner and late:
            found = [self._assertions.unevaluated(entry, shape) for shape in found]
        return found

    def _none(self, entry: Entry, number: int) -> list[Shape]:
        """The values that do not satisfy a schema: those that break one of its assertions."""
        found: list[Shape] = list(self._assertions.broken(entry))
        for arms in self._assertions.applied_broken(entry):
            found.extend(arms())
        found.extend(self._assertions.unevaluated_broken(entry, number))
        return list(dict.fromkeys(found))

    # -- emptiness -------------------------------------------------------------------------------------------------

    def excludes(self, keys: Sequence[Key]) -> bool:
        """Whether it is plain that no value satisfies all of ``keys``."""
        return self.is_never(frozenset().union(*keys), _DEPTH)

    def is_never(self, key: Key, depth: int) -> bool:
        """Whether it is plain, looking ``depth`` levels into values, that no value satisfies ``key``."""
        if self.never <= key:
            return True
        if depth <= 0 or not key:
            return False
        try:
            return all(self.is_empty(shape, depth) for shape in self.shapes(key))
        except Busy:
            return False

    def is_empty(self, shape: Shape, depth: int) -> bool:
        """Whether it is plain that no value has the shape."""
        if impossible(shape):
            return True
        if isinstance(shape, Str) and shape.only is None and (len(shape.wanted) > 1 or shape.unwanted):
            self.spend(500, 0)  # a product of automata takes as long as so many pairs
            return is_empty([*shape.wanted] or [], [*shape.unwanted]) if shape.wanted else False
        if isinstance(shape, Obj):
            return any(self.is_never(self.value_of(shape, name), depth - 1) for name in sorted(shape.required))
        if isinstance(shape, Arr):
            return any(
                self.is_never(shape.prefix[i] if i < len(shape.prefix) else shape.rest, depth - 1)
                for i in range(min(shape.low, len(shape.prefix) + 1))
            )
        return False

    def value_of(self, shape: Obj, name: str) -> Key:
        """What the value of a key must satisfy."""
        key: Key = dict(shape.named).get(name, ANY)
        for pattern, value in shape.patterns:
            if self.matches(pattern, name):
                key |= value
        for kind, value in shape.extras:
            if self.is_of_kind(kind, name):
                key |= value
        if shape.texts and not self.admits_text(shape.texts, name):
            key |= self.never
        return key

    def is_of_kind(self, kind: Kind, name: str) -> bool:
        """Whether an object's key is of a kind."""
        if kind.pattern is not None:
            return self.matches(kind.pattern, name)
        if kind.text is not None:
            return self.admits_text(kind.text, name)
        assert kind.names is not None
        return name not in kind.names and not any(self.matches(pattern, name) for pattern in kind.patterns)

    def matches(self, pattern: str, name: str) -> bool:
        """Whether a pattern is found in a key."""
        dfa = self._assertions.pattern(pattern)
        return dfa is not None and dfa.accepts(name.encode("utf-8", "surrogatepass"))

    def admits_text(self, key: Key, text: str) -> bool:
        """Whether a string satisfies a key."""
        from_only = Str(only=frozenset({text}))
        return any(isinstance(shape, Str) for shape in product([from_only], self.shapes(key)))
