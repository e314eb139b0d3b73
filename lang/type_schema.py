"""Python types to JSON Schema, by pydantic: for every type whose text is no regular language, or is simpler as rules.

All fields are written, in order, and no others; a ``TypedDict`` leaves out what it does not require. What pydantic
would read differently from JSON Schema (dates, decimals, patterns, addresses) is said by formats of our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from ..runtime.constraints.formats import OWN
from ..runtime.errors import UnsupportedByBackend
from .rules import opened
from .type_rules import SETTINGS

_FREE_FORMATS = {"binary", "path", "ipv4", "ipv6", "password"}
"""Formats that any text, or exactly JSON Schema's text, satisfies."""


class _Generator(GenerateJsonSchema):
    """Pydantic's own generator, made exact where it is loose."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        """Every field of a model or dataclass is written; a TypedDict says for itself."""
        return super().field_is_required(field, total) if field["type"] == "typed-dict-field" else True

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        """A model without settings that would change what its strings hold."""
        for option in SETTINGS:
            if schema["cls"].model_config.get(option):
                raise UnsupportedByBackend(f"{schema['cls'].__name__}: the setting {option} is not enforced")
        return super().model_schema(schema)

    def default_schema(self, schema: Any) -> JsonSchemaValue:
        """Without the default itself, which need not be JSON."""
        return self.generate_inner(schema["schema"])

    def str_schema(self, schema: Any) -> JsonSchemaValue:
        """Patterns stand for the whole text unless one end is anchored, as for ``Annotated[str, regex(...)]``."""
        for option in ("strip_whitespace", "to_lower", "to_upper"):
            if schema.get(option):
                raise UnsupportedByBackend(f"str cannot be generated: the setting str_{option} is not enforced")
        found = super().str_schema(schema)
        pattern = found.pop("pattern", None)
        if pattern is not None:
            found["format"] = OWN + "regex:" + opened(pattern)
        return found

    def date_schema(self, schema: Any) -> JsonSchemaValue:
        """Days that ``datetime.date`` has."""
        return self._bounded(schema, "date")

    def time_schema(self, schema: Any) -> JsonSchemaValue:
        """Times as ``datetime.time`` reads them."""
        return self._bounded(schema, "time")

    def datetime_schema(self, schema: Any) -> JsonSchemaValue:
        """Date and time, with a zone or without."""
        return self._bounded(schema, "datetime")

    def timedelta_schema(self, schema: Any) -> JsonSchemaValue:
        """ISO 8601 durations that ``timedelta`` holds."""
        return self._bounded(schema, "duration")

    def decimal_schema(self, schema: Any) -> JsonSchemaValue:
        """A decimal as a string, without exponent."""
        return self._bounded(schema, "decimal", "multiple_of", "max_digits", "decimal_places")

    def url_schema(self, schema: Any) -> JsonSchemaValue:
        """A web address."""
        return {"type": "string", "format": OWN + "url", "maxLength": schema.get("max_length", 2083)}

    def function_after_schema(self, schema: Any) -> JsonSchemaValue:
        """A user's validator runs on the value; a constraint that pydantic could only turn into one is refused."""
        function = schema["function"]["function"]
        function = getattr(function, "func", function)
        if str(getattr(function, "__module__", "")).startswith("pydantic._internal"):
            raise UnsupportedByBackend(
                f"union cannot be generated: the constraint of {function.__name__} is not enforced on it"
            )
        return super().function_after_schema(schema)

    def dict_schema(self, schema: Any) -> JsonSchemaValue:
        """Keys are strings in JSON, whatever they become."""
        found: JsonSchemaValue = {"type": "object"}
        for option, keyword in (("min_length", "minProperties"), ("max_length", "maxProperties")):
            if schema.get(option) is not None:
                found[keyword] = schema[option]
        if "values_schema" in schema:
            found["additionalProperties"] = self.generate_inner(schema["values_schema"])
        keys = self.generate_inner(schema["keys_schema"]) if "keys_schema" in schema else {}
        if keys.get("type") == "integer" and len(keys.keys() - {"title"}) == 1:
            keys = {"format": OWN + "integer"}
        elif keys and "$ref" not in keys and keys.get("type") != "string":
            raise UnsupportedByBackend(f"dict cannot be generated: keys of the schema {keys} have no text")
        if keys:
            found["propertyNames"] = keys
        return found

    def set_schema(self, schema: Any) -> JsonSchemaValue:
        """Items may be repeated, the set does not mind; unless it has to have so many."""
        found = super().set_schema(schema)
        if not found.get("minItems"):
            found.pop("uniqueItems", None)
        return found

    def frozenset_schema(self, schema: Any) -> JsonSchemaValue:
        """As ``set_schema``."""
        return self.set_schema(schema)

    def _bounded(self, schema: Any, name: str, *more: str) -> JsonSchemaValue:
        for option in ("gt", "ge", "lt", "le", "now_op", "tz_constraint", *more):
            if schema.get(option) is not None:
                raise UnsupportedByBackend(f"{name} cannot be generated: the constraint {option} is not enforced")
        return {"type": "string", "format": OWN + name}


def schema_of(wanted: Any, name: str) -> Mapping[str, Any]:
    """The JSON Schema of a type's compact JSON. Raises UnsupportedByBackend for what has none."""
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(wanted)
        schema = adapter.json_schema(schema_generator=_Generator, by_alias=True)
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError) as error:
        raise UnsupportedByBackend(f"{name} cannot be generated: {str(error).splitlines()[0]}") from error
    _close(schema, name)
    return schema


def _close(part: Any, name: str) -> None:
    """Allow only what is declared, and refuse formats that are not enforced."""
    if isinstance(part, list):
        for one in part:
            _close(one, name)
        return
    if not isinstance(part, dict):
        return
    form = part.get("format")
    if isinstance(form, str) and "type" in part and form not in _FREE_FORMATS and not form.startswith(OWN):
        raise UnsupportedByBackend(f"{name} cannot be generated: the format {form!r} is not enforced")
    if isinstance(part.get("properties"), dict) and part.get("type") == "object":
        part.setdefault("additionalProperties", False)
    for keyword, value in part.items():
        if keyword in ("properties", "$defs", "patternProperties"):
            for one in value.values():
                _close(one, name)
        elif keyword not in ("enum", "const", "default", "examples", "title", "description", "discriminator"):
            _close(value, name)
