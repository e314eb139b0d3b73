"""Where schemas stand: drafts, identifiers, anchors and references inside one document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from ..errors import UnsupportedSchema

Literal = tuple[int, bool]
"""A schema by number, and whether a value must satisfy it or must not."""

Key = frozenset[Literal]
"""What a value must satisfy: all of some literals. The empty key is any value."""

ANY: Key = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class AllOf:
    """A schema made by the compiler: all literals of a key."""

    key: Key


@dataclass(frozen=True, slots=True, eq=False)
class AnyOf:
    """A schema made by the compiler: any of some keys."""

    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A schema and its surroundings."""

    schema: Any
    """A mapping or a bool, as the user wrote it, or ``AllOf`` or ``AnyOf``."""
    base: str
    path: str
    draft: int
    """4, 6, 7, 2019 or 2020; 0 where the document does not say."""


_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("not", "if", "then", "else", "contains", "additionalProperties", "additionalItems", "propertyNames",
           "unevaluatedItems", "unevaluatedProperties", "items", "contentSchema")  # fmt: skip
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")


class Documents:
    """The schemas of one document by number, and what references lead to."""

    def __init__(self, root: Any) -> None:
        """Raises UnsupportedSchema for what is no schema."""
        self.entries: list[Entry] = []
        self._numbers: dict[tuple[int, str], int] = {}
        self._resources: dict[str, tuple[Any, str, int]] = {}
        self._anchors: dict[tuple[str, str], tuple[Any, str, int]] = {}
        self._dynamic: dict[str, list[tuple[str, Any]]] = {}
        self.root = root
        draft = _draft_of(root, 0)
        self.never = self.add(False, "", "#", draft)
        self._resources[""] = (root, "#", draft)
        self._scan(root, "", "#", draft, 0)
        base = self._base_of(root, "", draft)
        self.start: Key = frozenset({(self.add(root, base, "#", draft), True)})

    def add(self, schema: Any, base: str, path: str, draft: int) -> int:
        """The number of a schema at a place."""
        key = (id(schema), base) if not isinstance(schema, bool) else (int(schema), "bool")
        number = self._numbers.get(key)
        if number is None:
            if not isinstance(schema, Mapping | bool | AllOf | AnyOf):
                raise UnsupportedSchema(path, "schema", f"{schema!r:.80} is no schema")
            number = self._numbers[key] = len(self.entries)
            self.entries.append(Entry(schema, base, path, draft))
        return number

    def child(self, entry: Entry, schema: Any, *steps: str | int) -> Literal:
        """The literal of a schema inside ``entry``."""
        path = "/".join([entry.path, *(str(step).replace("~", "~0").replace("/", "~1") for step in steps)])
        draft = _draft_of(schema, entry.draft)
        return self.add(schema, self._base_of(schema, entry.base, draft), path, draft), True

    def made(self, schema: AllOf | AnyOf | Mapping[str, Any], entry: Entry) -> Literal:
        """The literal of a schema that the compiler made for ``entry``."""
        return self.add(schema, entry.base, entry.path, entry.draft), True

    def resolve(self, entry: Entry, reference: Any, keyword: str) -> Literal:
        """What a reference leads to. Raises UnsupportedSchema if that is not in the document."""
        if not isinstance(reference, str):
            raise UnsupportedSchema(entry.path, keyword, f"{reference!r:.80} is no reference")
        if keyword == "$recursiveRef":
            return self._recursive(entry)
        if reference.startswith("#"):
            address, fragment = entry.base, reference[1:]
        else:
            address, fragment = urldefrag(urljoin(entry.base, reference) if entry.base else reference)
        found = self._resources.get(address)
        if found is None and not address:
            found = self._resources[""]
        if found is None:
            raise UnsupportedSchema(entry.path, keyword, f"{reference!r} is not in the document")
        schema, path, draft = found
        base = self._base_of(schema, address, draft)
        if keyword == "$dynamicRef" and (base, unquote(fragment)) in {
            (where, name) for name, places in self._dynamic.items() for where, _ in places
        }:
            return self._dynamically(entry, unquote(fragment), base)
        if fragment and not fragment.startswith("/"):
            named = self._anchors.get((base, unquote(fragment)))
            if named is None:
                raise UnsupportedSchema(entry.path, keyword, f"{reference!r} names no anchor")
            schema, path, draft = named
            return self.add(schema, self._base_of(schema, base, draft), path, draft), True
        for step in fragment.split("/")[1:] if fragment else ():
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            path = f"{path}/{step}"
            if isinstance(schema, Mapping) and name in schema:
                schema = schema[name]
            elif (
                isinstance(schema, Sequence)
                and not isinstance(schema, str)
                and name.isdigit()
                and (int(name) < len(schema))
            ):
                schema = schema[int(name)]
            else:
                raise UnsupportedSchema(entry.path, keyword, f"{reference!r} leads nowhere")
            draft = _draft_of(schema, draft)
            base = self._base_of(schema, base, draft)
        return self.add(schema, base, path, draft), True

    def _dynamically(self, entry: Entry, name: str, base: str) -> Literal:
        """A dynamic anchor: the outermost resource's. The root is in every dynamic scope, and first."""
        places = self._dynamic[name]
        root_base = self._base_of(self.root, "", 2020)
        for where, schema in places:
            if where == root_base or len(places) == 1:
                _, path, draft = self._anchors[(where, name)]
                return self.add(schema, where, path, draft), True
        raise UnsupportedSchema(entry.path, "$dynamicRef", f"{name!r} depends on the path by which it is reached")

    def _recursive(self, entry: Entry) -> Literal:
        schema, path, draft = self._resources.get(entry.base, self._resources[""])
        if isinstance(schema, Mapping) and schema.get("$recursiveAnchor") is True:
            root = self.root
            if isinstance(root, Mapping) and root.get("$recursiveAnchor") is True:
                return self.add(root, self._base_of(root, "", draft), "#", draft), True
            raise UnsupportedSchema(entry.path, "$recursiveRef", "it depends on the path by which it is reached")
        return self.add(schema, self._base_of(schema, entry.base, draft), path, draft), True

    def _base_of(self, schema: Any, base: str, draft: int) -> str:
        identifier = _identifier(schema, draft)
        if identifier is None or identifier.startswith("#"):
            return base
        return urldefrag(urljoin(base, identifier))[0]

    def _scan(self, schema: Any, base: str, path: str, draft: int, depth: int) -> None:
        """Find identifiers and anchors in all places where a schema may stand."""
        if depth > 200:
            raise UnsupportedSchema(path, "schema", "it is nested too deeply")
        if not isinstance(schema, Mapping):
            return
        draft = _draft_of(schema, draft)
        identifier = _identifier(schema, draft)
        if identifier is not None:
            if identifier.startswith("#"):
                self._anchors[(base, identifier[1:])] = (schema, path, draft)
            else:
                base = urldefrag(urljoin(base, identifier))[0]
                self._resources.setdefault(base, (schema, path, draft))
        if not (0 < draft < 2019):
            for keyword in ("$anchor", "$dynamicAnchor"):
                name = schema.get(keyword)
                if isinstance(name, str):
                    self._anchors[(base, name)] = (schema, path, draft)
                    if keyword == "$dynamicAnchor":
                        self._dynamic.setdefault(name, []).append((base, schema))
        for keyword, value in schema.items():
            if keyword in ("enum", "const", "default", "examples"):
                continue
            below = f"{path}/{keyword}"
            if keyword in _SINGLE or keyword in _LISTS:
                for i, part in enumerate(value) if isinstance(value, list) else ():
                    self._scan(part, base, f"{below}/{i}", draft, depth + 1)
                if isinstance(value, Mapping):
                    self._scan(value, base, below, draft, depth + 1)
            elif keyword in _MAPS and isinstance(value, Mapping):
                for name, part in value.items():
                    self._scan(part, base, f"{below}/{name}", draft, depth + 1)


def _identifier(schema: Any, draft: int) -> str | None:
    if not isinstance(schema, Mapping):
        return None
    if 0 < draft < 2019 and "$ref" in schema:
        return None
    value = schema.get("id" if draft == 4 else "$id")
    return value if isinstance(value, str) else None


def _draft_of(schema: Any, draft: int) -> int:
    uri = schema.get("$schema") if isinstance(schema, Mapping) else None
    if not isinstance(uri, str):
        return draft
    for mark, number in (("2020-12", 2020), ("2019-09", 2019), ("draft-07", 7), ("draft-06", 6), ("draft-04", 4),
                         ("draft-03", 4)):  # fmt: skip
        if mark in uri:
            return number
    return draft
