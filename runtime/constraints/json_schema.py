"""JSON Schema as a machine: the door to the compiler."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..errors import UnsatisfiableConstraint, UnsupportedSchema
from .machine import FAR, Machine, config
from .schema_build import Builder, Style
from .schema_documents import Documents
from .schema_expand import Busy, Expander


class CompiledSchema(NamedTuple):
    """A schema's machine, and what of the schema it does not enforce."""

    machine: Machine
    unchecked: tuple[UnsupportedSchema, ...]
    """What is to be checked once a value is there; empty unless compiled as ``lenient``."""


def compile_schema(schema: Any, *, style: Style | None = None, lenient: bool = False) -> CompiledSchema:
    """The machine of the JSON texts of the values that satisfy ``schema`` (drafts 4 to 2020-12).

    Raises UnsupportedSchema for what is no schema or cannot be enforced, with its place; UnsatisfiableConstraint if
    no value satisfies it.
    """
    try:
        documents = Documents(schema)
        expander = Expander(documents, lenient=lenient)
        node = Builder(expander, style or Style()).build(documents.start)
    except Busy as error:
        raise UnsupportedSchema(str(error), "$ref", "it refers to itself without reading anything") from error
    except RecursionError as error:
        raise UnsupportedSchema("#", "schema", "it is nested too deeply, or refers to itself without end") from error
    if node.min_bytes >= FAR:
        raise UnsatisfiableConstraint("no value satisfies the schema")
    return CompiledSchema(Machine([config(node, None, None)]), tuple(expander.unchecked.values()))
