"""JSON Schema as a constraint: every valid value can be written, no invalid one, and the rest is refused by name."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

import furcate as fc
from furcate.runtime.constraints.json_schema import compile_schema
from furcate.runtime.constraints.machine_masks import MachineConstraint
from furcate.runtime.constraints.schema_build import Style
from furcate.runtime.errors import UnsatisfiableConstraint, UnsupportedSchema
from furcate.runtime.models.byte_tokenizer import ByteTokenizer
from furcate.runtime.vocabulary import Vocabulary
from furcate.testing import RandomValid, admits

TREE = {
    "$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"}, "c": {"type": "array", "items": {
        "$ref": "#/$defs/node"}}}, "required": ["v"], "additionalProperties": False}},
    "$ref": "#/$defs/node",
}  # fmt: skip
SCHEMAS: list[Any] = [
    True, {}, TREE, {"type": ["integer", "null"], "minimum": -3, "exclusiveMaximum": 12},
    {"type": "number", "minimum": 0.5, "maximum": 10}, {"type": "number", "multipleOf": 0.25},
    {"type": "string", "minLength": 2, "maxLength": 4}, {"type": "string", "pattern": "^a|b$", "maxLength": 6},
    {"enum": ["a", 1, 10, None, {"k": [1]}, "é\"\\"]}, {"const": {"a": [1, None]}},
    {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2, "maxProperties": 3},
    {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
    {"type": "object", "propertyNames": {"enum": ["p", "q"]}, "minProperties": 1},
    {"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}, "maxItems": 3},
    {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 2},
    {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
    {"type": "object", "properties": {"k": {"enum": ["a", "b"]}, "n": {"type": "integer"}}, "required": ["k"],
     "if": {"properties": {"k": {"const": "a"}}}, "then": {"required": ["n"]}, "additionalProperties": False},
    {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 4}]},
    {"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}, "maxProperties": 2,
     "additionalProperties": {"type": "null"}},
    {"type": "object", "not": {"required": ["a", "b"]}, "properties": {"a": {"type": "integer"}, "b": {}},
     "additionalProperties": False},
    {"allOf": [{"properties": {"a": {"type": "integer"}}}], "properties": {"b": {"type": "boolean"}},
     "unevaluatedProperties": False, "type": "object"},
    {"type": "string", "format": "date-time"}, {"type": "string", "format": "ipv6"},
    {"type": "string", "format": "uuid"},
]  # fmt: skip


@pytest.mark.parametrize("style", [Style(), Style(flexible=True, ordered=False)], ids=["compact", "flexible"])
@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda s: json.dumps(s)[:50])
def test_random_texts_are_valid_and_end(schema: Any, style: Style) -> None:
    machine = compile_schema(schema, style=style).machine
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    rng = random.Random(0)
    constraint = MachineConstraint(machine, ByteTokenizer().vocabulary)
    for _ in range(6):
        state, text = machine.start, bytearray()
        while not (state.ends and (not state.configs or rng.random() < 0.3 or len(text) > 80)):
            need = machine.need(state)
            mask = constraint.mask(state)
            options = [byte for byte in range(256) if mask[byte // 32] >> (byte % 32) & 1]
            after = {byte: machine.step(state, byte) for byte in options}
            assert all(one.alive for one in after.values())
            nearer = [byte for byte in options if machine.need(after[byte]) < need]
            assert nearer or state.ends
            if len(text) > 40 or rng.random() < 0.3:
                options = nearer or options
            byte = rng.choice(options)
            text.append(byte)
            state = after[byte]
        validator.validate(json.loads(text.decode()))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"enum": [1, 10, 100]}, ["1", "10", "100"], ["0", "1000", ""]),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}]}, ["1.5", "1", "1e5"], ["", "1."]),
        ({"type": "object"}, ['{"a":1,"b":2}'], ['{"a":1,"a":2}', '{"a":1,"\\u0061":2}']),
        ({"type": "string", "maxLength": 2}, ['"\\u0041\\u0042"', '"\\n\\n"', '"🎉é"'], ['"abc"', '"\\ud800"']),
        ({"properties": {"a": {"type": "integer"}}, "required": ["zz"]}, ['{"a":1,"zz":0}', "3"], ['{"a":1}']),
        ({"type": "string", "pattern": '^".*"$'}, ['"\\"x\\""'], ['""x""']),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ["1.5"], ["1"]),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}, "maximum": 5}, ["5"], ["6", '"a"']),
        ({"type": "array", "items": [{"type": "integer"}], "additionalItems": False}, ["[]", "[1]"], ["[1,2]"]),
        ({"type": "number", "minimum": 5, "exclusiveMinimum": True}, ["5.1"], ["5", "5.0"]),
    ],
)  # fmt: skip
def test_texts_that_are_admitted_and_refused(schema: Any, good: list[str], bad: list[str]) -> None:
    wanted = fc.json_schema(schema)
    assert [text for text in good if not admits(wanted, text)] == []
    assert [text for text in bad if admits(wanted, text)] == []


def test_keys_come_in_the_schemas_order_or_any() -> None:
    schema = {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a", "b"]}
    text = '{"b":1,"a":2}'
    assert not admits(fc.json_schema(schema), text)
    assert admits(fc.json_schema(schema, key_order="any"), text)


def test_white_space_is_bounded() -> None:
    wanted = fc.json_schema({"type": "object"}, whitespace="flexible")
    value = {"a": [1, {"b": None}], "c": "d"}
    assert all(admits(wanted, json.dumps(value, indent=indent)) for indent in (None, 0, 2, 4))
    assert not admits(wanted, '{"a":   1}')
    assert not admits(wanted, '{"a":\n\n1}')
    assert not admits(wanted, " {}")


@pytest.mark.parametrize(
    ("schema", "path", "keyword"),
    [
        ({"properties": {"a": {"$ref": "https://example.com/x"}}}, "#/properties/a", "$ref"),
        ({"items": {"type": "string", "pattern": r"(a)\1"}}, "#/items", "pattern"),
        ({"type": "strnig"}, "#", "type"),
        ({"properties": {"a": 3}}, "#/properties/a", "schema"),
        ({"maxLength": -1}, "#", "maxLength"),
        ({"format": "idn-email"}, "#", "format"),
        ({"allOf": [{"$ref": "#"}]}, "#", "$ref"),
        (7, "#", "schema"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(schema: Any, path: str, keyword: str) -> None:
    with pytest.raises(UnsupportedSchema) as refused:
        compile_schema(schema)
    assert (refused.value.path, refused.value.keyword) == (path, keyword)
    assert refused.value.reason


def test_lenient_schemas_list_what_is_not_enforced() -> None:
    compiled = compile_schema({"type": "string", "format": "idn-email"}, lenient=True)
    assert [error.keyword for error in compiled.unchecked] == ["format"]


@pytest.mark.parametrize("schema", [False, {"enum": []}, {"type": "integer", "minimum": 2, "maximum": 1},
                                    {"type": "object", "properties": {"a": False}, "required": ["a"]},
                                    {"$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}},
                                                     "required": ["n"]}}, "$ref": "#/$defs/n"}])  # fmt: skip
def test_schemas_without_values_are_unsatisfiable(schema: Any) -> None:
    with pytest.raises(UnsatisfiableConstraint):
        compile_schema(schema)


MERGED = [b'{"', b'":', b'","', b"ab", b'b"', b"12", b"}}", b'"}', b"\\u00", b"\xc3\xa9", b"[[", b"],", b" the"]


@pytest.mark.parametrize("schema", SCHEMAS, ids=lambda s: json.dumps(s)[:50])
def test_masks_equal_trying_every_token(schema: Any) -> None:
    vocabulary = Vocabulary((*(bytes([b]) for b in range(256)), *MERGED, None), frozenset({256 + len(MERGED)}))
    machine = compile_schema(schema).machine
    constraint = MachineConstraint(machine, vocabulary)
    rng = random.Random(1)
    for _ in range(2):
        state = machine.start
        for _ in range(12):
            expected = []
            for i, token in enumerate(vocabulary.token_bytes):
                after = state
                for byte in token or b"":
                    after = machine.step(after, byte)
                if token and after.alive:
                    expected.append(i)
            mask = constraint.mask(state)
            assert [i for i in range(vocabulary.size) if mask[i // 32] >> (i % 32) & 1] == expected
            forced = machine.forced(state)
            if forced:
                assert all((vocabulary.token_bytes[i] or b"").startswith(forced[:1]) for i in expected)
            if not expected:
                break
            state = constraint.advance(state, rng.choice(expected))


def test_a_program_generates_what_the_schema_says() -> None:
    @fc.program
    def fill(c: fc.Context) -> Any:
        c.user("Fill it in.")
        return c.gen(fc.json_schema(TREE), max_tokens=60)

    for seed in range(5):
        jsonschema.validate(fill.using(RandomValid(seed), seed=seed)(), TREE)
