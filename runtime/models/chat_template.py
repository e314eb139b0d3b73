"""A model's own Jinja chat template, compiled once, with what the Hugging Face templates expect to find."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _GenerationBlock(Extension):
    """``{% generation %}...{% endgeneration %}`` marks an assistant's words for training; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """Renders messages to text. Immutable; the date that ``strftime_now`` sees is the one of construction."""

    __slots__ = ("_template", "_variables", "source")

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        """Raises jinja2.TemplateSyntaxError where ``source`` is no template."""
        self.source = source
        self._variables = {"bos_token": bos_token, "eos_token": eos_token, "tools": None, "documents": None}
        self._template = _compile(source, datetime.now())

    def render(self, messages: Sequence[Mapping[str, str]], *, generation_prompt: bool) -> str:
        """Text of ``messages``. Raises jinja2.TemplateError where the template refuses them."""
        return self._template.render(
            messages=[dict(message) for message in messages],
            add_generation_prompt=generation_prompt,
            **self._variables,
        )


def _compile(source: str, now: datetime) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = now.strftime
    return environment.from_string(source)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja2's own filter escapes HTML and sorts keys."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
