"""What ``gen`` is asked for: a language of texts, and how a text becomes a value."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Generic, TypeVar

from lark.exceptions import LarkError
from pydantic import ValidationError

from ..runtime.constraints.byte_dfa import ByteDFA
from ..runtime.constraints.formats import OWN
from ..runtime.constraints.machine import Machine
from ..runtime.constraints.machine_masks import machine_constraint
from ..runtime.constraints.protocol import Constraint
from ..runtime.constraints.token_masks import constraint_of
from ..runtime.errors import UnsupportedByBackend
from ..runtime.vocabulary import Vocabulary
from .errors import ValidationFailed

T_co = TypeVar("T_co", covariant=True)


class OutputType(Generic[T_co]):
    """What ``gen`` is asked for: a language of texts, and how a text becomes a value. Made by ``resolve``, ``regex``,
    ``grammar`` and ``json_schema``; ``Annotated[str, regex("...")]`` uses one as metadata."""

    def __init__(
        self,
        name: str,
        parse: Callable[[str], T_co],
        *,
        compile: Callable[[], ByteDFA] | None = None,
        choices: Callable[[], list[tuple[T_co, str]]] | None = None,
        partial: Callable[[str], Any] = str,
        pattern: str | None = None,
        machine: Callable[[], Machine] | None = None,
    ) -> None:
        """compile: makes the automaton of a regular language; machine: of any other; neither: any text. pattern: of
        ``regex``."""
        self.name = name
        """As it stands in messages: ``int``, ``Verdict``, ``Search | Finish``, ``regex('[a-z]+')``."""
        self.pattern = pattern
        self._parse = parse
        self._compile = compile
        self._choices = choices
        self._partial = partial
        self._machine = machine

    def __repr__(self) -> str:
        return f"OutputType({self.name})"

    @cached_property
    def dfa(self) -> ByteDFA | None:
        """The automaton of the type's texts, None for any text and for what is no regular language; compiled at the
        first use.

        Raises UnsatisfiableConstraint, InvalidRegex or UnsupportedByBackend.
        """
        return self._compile() if self._compile is not None else None

    @cached_property
    def machine(self) -> Machine | None:
        """The pushdown automaton of the type's texts, None where ``dfa`` says all; built at the first use.

        Raises UnsatisfiableConstraint, UnsupportedSchema, InvalidRegex or UnsupportedByBackend.
        """
        return self._machine() if self._machine is not None else None

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        """As metadata, ``Annotated[str, regex("...")]``: pydantic asks what JSON it stands for."""
        found = handler(schema)
        if self.pattern is None:
            raise UnsupportedByBackend(f"{self.name} cannot be generated inside JSON: only patterns can")
        found["format"] = OWN + "regex:" + self.pattern
        return found

    def admits(self, text: bytes) -> bool:
        """Whether a whole text is one of the type's. Raises as ``dfa`` and ``machine`` do."""
        machine = self.machine
        if machine is not None:
            return machine.read(text).ends
        return self.dfa is None or self.dfa.accepts(text)

    @property
    def finite(self) -> bool:
        """Whether there is a longest text."""
        return self.max_bytes is not None

    @property
    def max_bytes(self) -> int | None:
        """Bytes of the longest text, None if there is no longest, or none is known. Raises as ``dfa`` does."""
        return self.dfa.max_bytes if self.dfa is not None else None

    def constraint(self, vocabulary: Vocabulary) -> Constraint | None:
        """The constraint on tokens of ``vocabulary``, None for any text. Raises as ``dfa`` and ``machine`` do."""
        machine = self.machine
        if machine is not None:
            return machine_constraint(machine, vocabulary)
        return constraint_of(self.dfa, vocabulary) if self.dfa is not None else None

    def parse(self, text: str) -> T_co:
        """The value of ``text``, which satisfies the constraint. Raises ValidationFailed if a validator refuses it."""
        try:
            return self._parse(text)
        except (ValidationError, ValueError, ArithmeticError, KeyError, LarkError) as error:
            raise ValidationFailed(f"{self.name}: the text {_shown(text)} was refused: {error}") from error

    def partial(self, text: str) -> Any:
        """What there is of a value whose text broke off: containers as far as they go, else the text itself."""
        return self._partial(text)

    def choices(self) -> list[tuple[T_co, str]] | None:
        """Values and their bare texts of a ``Literal``, ``Enum`` or ``bool``; None for other types."""
        return self._choices() if self._choices is not None else None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 200 else text[:200] + "...")
