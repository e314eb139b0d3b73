"""Python types to rules: which text, or which JSON, stands for a value of a type. What is not exact is refused."""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum, Flag
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin
from uuid import UUID

import annotated_types
import typing_extensions
from pydantic import BaseModel, RootModel, Strict, StringConstraints
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.functional_validators import AfterValidator, BeforeValidator, PlainValidator, WrapValidator

from ..runtime.errors import UnsatisfiableConstraint, UnsupportedByBackend
from . import rules
from .output_type import OutputType
from .rules import Json, Rule

SCALARS: dict[Any, Rule] = {
    int: rules.INTEGER,
    float: rules.NUMBER,
    bool: rules.either((rules.literal("true"), rules.literal("false"))),
    type(None): rules.literal("null"),
}
"""Types whose bare text is their JSON."""

TEXTS: dict[Any, Rule] = {
    date: rules.DATE,
    datetime: rules.DATETIME,
    time: rules.TIME,
    UUID: rules.UUID_TEXT,
    Decimal: rules.DECIMAL,
}
"""Types that are bare text, and a string in JSON."""

MAX_POSITIONS = 100_000
"""States that the automaton of a type may come to, estimated."""

_VALIDATORS = (AfterValidator, BeforeValidator, PlainValidator, WrapValidator, Strict)
_HARMLESS = ("strict", "allow_inf_nan", "union_mode", "coerce_numbers_to_str")
SETTINGS = ("str_strip_whitespace", "str_to_lower", "str_to_upper", "str_min_length", "str_max_length")
"""Settings of a model that would change its values, and are refused."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The constraints that are enforced on one value."""

    low: int | None = None
    high: int | None = None
    min_length: int | None = None
    max_length: int | None = None
    patterns: tuple[str, ...] = ()

    @property
    def has_range(self) -> bool:
        return self.low is not None or self.high is not None

    @property
    def has_length(self) -> bool:
        return self.min_length is not None or self.max_length is not None


def split_annotated(wanted: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without ``Annotated``, ``NewType`` and named aliases, and the metadata they carried, innermost first."""
    metadata: tuple[Any, ...] = ()
    while True:
        if get_origin(wanted) is Annotated:
            metadata = (*wanted.__metadata__, *metadata)
            wanted = wanted.__origin__
        elif isinstance(wanted, typing_extensions.TypeAliasType):
            wanted = wanted.__value__
        elif isinstance(wanted, typing.NewType):
            wanted = wanted.__supertype__
        else:
            return wanted, metadata


def is_union(wanted: Any) -> bool:
    """Whether the type is ``A | B`` or ``Optional[A]``."""
    return get_origin(wanted) in (Union, types.UnionType)


def type_name(wanted: Any) -> str:
    """How a type is called in messages."""
    if isinstance(wanted, type) and get_origin(wanted) is None:
        return wanted.__name__
    if is_union(wanted):
        return " | ".join("None" if arm is type(None) else type_name(arm) for arm in get_args(wanted))
    if get_origin(wanted) is list:
        return f"list[{type_name(get_args(wanted)[0])}]"
    return str(wanted).replace("typing.", "")


def refuse(path: str, wanted: Any, why: str) -> UnsupportedByBackend:
    """The error for a type that cannot be generated exactly."""
    return UnsupportedByBackend(f"{path}: {type_name(wanted)} cannot be generated: {why}")


def literal_values(wanted: Any) -> list[Any] | None:
    """The values of a ``Literal``, ``Enum`` or ``bool``, in order; None for any other type."""
    if get_origin(wanted) in (Literal, typing_extensions.Literal):
        return list(get_args(wanted))
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return list(wanted)
    return [True, False] if wanted is bool else None


def plain_value(value: Any, path: str, wanted: Any) -> Json:
    """The JSON scalar behind a value of a ``Literal`` or ``Enum``."""
    if isinstance(value, Flag):
        raise refuse(path, wanted, "flags combine, and their combinations have no text")
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise refuse(path, wanted, f"{value!r} has no UTF-8 form") from error
        return value
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return cast("Json", value)
    raise refuse(path, wanted, f"{value!r} is neither text nor a number, a truth value or None")


def bare_text(value: Json) -> str:
    """The text of a scalar outside JSON: strings as they are, the rest as in JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def read_limits(metadata: Iterable[Any], path: str, wanted: Any) -> Limits:
    """The constraints in ``metadata``. Raises UnsupportedByBackend for those that are not enforced."""
    limits = Limits()
    for item in metadata:
        limits = _with_limit(limits, item, path, wanted)
    return limits


def _with_limit(limits: Limits, item: Any, path: str, wanted: Any) -> Limits:
    if isinstance(item, FieldInfo):
        return _with_limits(limits, item.metadata, path, wanted)
    if isinstance(item, OutputType) and item.pattern is not None:
        return replace(limits, patterns=(*limits.patterns, item.pattern))
    if isinstance(item, annotated_types.Ge | annotated_types.Gt):
        lower: tuple[Any, bool] = (item.ge, False) if isinstance(item, annotated_types.Ge) else (item.gt, True)
        return replace(limits, low=_tighter(limits.low, _integer(*lower, 1, path, wanted), max))
    if isinstance(item, annotated_types.Le | annotated_types.Lt):
        upper: tuple[Any, bool] = (item.le, False) if isinstance(item, annotated_types.Le) else (item.lt, True)
        return replace(limits, high=_tighter(limits.high, _integer(*upper, -1, path, wanted), min))
    if isinstance(item, annotated_types.MinLen):
        return replace(limits, min_length=_tighter(limits.min_length, item.min_length, max))
    if isinstance(item, annotated_types.MaxLen):
        return replace(limits, max_length=_tighter(limits.max_length, item.max_length, min))
    if isinstance(item, annotated_types.GroupedMetadata | StringConstraints):
        return _with_limits(limits, item, path, wanted)
    if isinstance(item, _VALIDATORS):
        return limits
    if isinstance(item, annotated_types.BaseMetadata) and hasattr(item, "__dict__"):
        return _with_general(limits, item, path, wanted)
    if isinstance(item, annotated_types.BaseMetadata | OutputType) or hasattr(item, "__get_pydantic_core_schema__"):
        raise refuse(path, wanted, f"the constraint {item!r} is not enforced")
    return limits  # documentation and other tools' marks; pydantic passes over them too


def _with_limits(limits: Limits, items: Iterable[Any], path: str, wanted: Any) -> Limits:
    for item in items:
        limits = _with_limit(limits, item, path, wanted)
    return limits


def _with_general(limits: Limits, item: Any, path: str, wanted: Any) -> Limits:
    """Pydantic keeps ``pattern`` and what annotated-types has no class for in one object's attributes."""
    for name, value in vars(item).items():
        if name == "pattern" and value is not None:
            pattern = value if isinstance(value, str) else value.pattern
            limits = replace(limits, patterns=(*limits.patterns, rules.opened(pattern)))
        elif name not in _HARMLESS and value not in (None, False):
            raise refuse(path, wanted, f"the constraint {name}={value!r} is not enforced")
    return limits


def _tighter(old: int | None, new: int | None, pick: Any) -> int | None:
    if old is None or new is None:
        return new if old is None else old
    return int(pick(old, new))


def _integer(bound: Any, strict: bool, direction: int, path: str, wanted: Any) -> int:
    """A bound as the first integer inside it. direction: 1 for lower bounds, -1 for upper ones."""
    if wanted is not int:
        raise refuse(path, wanted, "bounds (ge, gt, le, lt) are enforced on int only")
    try:
        nearest = int(bound)
    except (TypeError, ValueError, OverflowError) as error:
        raise refuse(path, wanted, f"{bound!r} is no bound of an integer") from error
    if nearest != bound:
        raise refuse(path, wanted, f"{bound!r} is no bound of an integer")
    return nearest + direction if strict else nearest


def bare(wanted: Any, metadata: tuple[Any, ...], path: str) -> Rule | None:
    """The rule of bare text for a scalar type; None for a ``str`` without constraints."""
    limits = read_limits(metadata, path, wanted)
    if wanted is str:
        _check_text(limits, path, wanted)
        if limits.patterns:
            return rules.pattern_text(limits.patterns[0])
        return rules.plain_text(limits.min_length or 0, limits.max_length) if limits.has_length else None
    return _scalar(wanted, limits, path) or TEXTS[wanted]


def is_bare(wanted: Any) -> bool:
    """Whether ``gen`` writes the type as bare text rather than JSON."""
    return wanted is str or wanted in SCALARS or wanted in TEXTS


def _scalar(wanted: Any, limits: Limits, path: str) -> Rule | None:
    """The rule of a type in ``SCALARS``; None for one in ``TEXTS``."""
    if limits.has_length or limits.patterns or (limits.has_range and wanted is not int):
        raise refuse(path, wanted, "constraints of length, range or pattern do not apply to it")
    if wanted is int and limits.has_range:
        rule = rules.integer_between(limits.low, limits.high)
        if rule is None:
            raise UnsatisfiableConstraint(f"{path}: no integer is at least {limits.low} and at most {limits.high}")
        return rule
    return SCALARS.get(wanted)


def _check_text(limits: Limits, path: str, wanted: Any) -> None:
    if limits.patterns and limits.has_length:
        raise refuse(path, wanted, "a pattern together with a limit of length is not enforced; write it in the pattern")
    if len(limits.patterns) > 1:
        raise refuse(path, wanted, "more than one pattern is not enforced")
    _check_lengths(limits, path)


def _check_lengths(limits: Limits, path: str) -> None:
    if limits.max_length is not None and (limits.min_length or 0) > limits.max_length:
        raise UnsatisfiableConstraint(
            f"{path}: min_length={limits.min_length} is more than max_length={limits.max_length}"
        )


def json_rule(wanted: Any, metadata: tuple[Any, ...], path: str, outer: tuple[type, ...] = ()) -> Rule:
    """The rule of compact JSON for a type. outer: the models around it. Raises UnsupportedByBackend with the path."""
    inner, more = split_annotated(wanted)
    metadata = (*more, *metadata)
    rule = _json_rule(inner, metadata, path, outer)
    if rule.positions > MAX_POSITIONS:
        raise refuse(
            path,
            inner,
            f"its automaton would have about {rule.positions:,} states, and at most {MAX_POSITIONS:,} are built; "
            "lower max_length",
        )
    return rule


def _json_rule(wanted: Any, metadata: tuple[Any, ...], path: str, outer: tuple[type, ...]) -> Rule:
    if isinstance(wanted, str | typing.ForwardRef):
        raise TypeError(f"{path}: an output type is a type, not the string {wanted!r}")
    if is_union(wanted):
        return _union(wanted, metadata, path, outer)
    limits = read_limits(metadata, path, wanted)
    if wanted is str:
        _check_text(limits, path, wanted)
        if limits.patterns:
            return rules.pattern_string(limits.patterns[0])
        return rules.json_string(limits.min_length or 0, limits.max_length)
    if wanted in SCALARS:
        return cast("Rule", _scalar(wanted, limits, path))
    if wanted in TEXTS:
        return rules.quoted(_scalar(wanted, limits, path) or TEXTS[wanted])
    if get_origin(wanted) is list or wanted is list:
        return _list(wanted, limits, path, outer)
    if limits != Limits():
        raise refuse(path, wanted, "its constraints are not enforced")
    values = literal_values(wanted)
    if values is not None:
        return rules.either(rules.json_scalar(plain_value(value, path, wanted)) for value in values)
    if isinstance(wanted, type) and issubclass(wanted, BaseModel):
        return _model(wanted, path, outer)
    raise refuse(path, wanted, "it is not among the supported types")


def _union(wanted: Any, metadata: tuple[Any, ...], path: str, outer: tuple[type, ...]) -> Rule:
    arms = get_args(wanted)
    rest = [arm for arm in arms if arm is not type(None)]
    constrained = any(read_limits((item,), path, int) != Limits() for item in metadata)
    if constrained and len(rest) > 1:
        raise refuse(path, wanted, "constraints on a union are not enforced; put them on its members")
    return rules.either(json_rule(arm, metadata if arm in rest else (), path, outer) for arm in arms)


def _list(wanted: Any, limits: Limits, path: str, outer: tuple[type, ...]) -> Rule:
    if not get_args(wanted):
        raise refuse(path, wanted, "say what the list holds, such as list[str]")
    if limits.has_range or limits.patterns:
        raise refuse(path, wanted, "constraints of range or pattern do not apply to it")
    _check_lengths(limits, path)
    low, high = limits.min_length or 0, limits.max_length
    nothing = rules.literal("[]")
    if high == 0:
        return nothing
    item = json_rule(get_args(wanted)[0], (), f"{path}[]", outer)
    more = rules.repeated(
        rules.sequence((rules.literal(","), item)), max(low - 1, 0), None if high is None else high - 1
    )
    some = rules.sequence((rules.literal("["), item, more, rules.literal("]")))
    return some if low > 0 else rules.either((nothing, some))


def _model(model: type[BaseModel], path: str, outer: tuple[type, ...]) -> Rule:
    if model in outer:
        raise refuse(path, model, "it is recursive")
    fields = fields_of(model)
    if issubclass(model, RootModel):
        field = fields["root"]
        return json_rule(field.annotation, tuple(field.metadata), path, (*outer, model))
    parts: list[Rule] = []
    for name, field in fields.items():
        place = f"{path}.{name}"
        key = rules.json_scalar(_key(model, name, field, place))
        value = json_rule(field.annotation, tuple(field.metadata), place, (*outer, model))
        parts.extend((rules.literal("," if parts else "{"), key, rules.literal(":"), value))
    return rules.sequence((*parts, rules.literal("}" if parts else "{}")))


def fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model in order. Raises UnsupportedByBackend for settings that would change its values."""
    if not model.__pydantic_complete__:
        try:
            model.model_rebuild()
        except (PydanticUndefinedAnnotation, PydanticUserError) as error:
            raise refuse(model.__name__, model, f"its annotations cannot be resolved: {error}") from error
    for option in SETTINGS:
        if model.model_config.get(option):
            raise refuse(model.__name__, model, f"the setting {option} is not enforced")
    return model.model_fields


def _key(model: type[BaseModel], name: str, field: FieldInfo, path: str) -> str:
    """The JSON key by which the model reads a field."""
    alias = field.validation_alias if field.validation_alias is not None else field.alias
    if alias is None or model.model_config.get("validate_by_alias") is False:
        return name
    if isinstance(alias, str):
        return alias
    raise refuse(path, model, f"the alias {alias!r} has more than one form")
