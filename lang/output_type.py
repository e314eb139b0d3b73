"""What ``gen`` is asked for: a language of texts, and how a text becomes a value."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from ..runtime.constraints.byte_dfa import ByteDFA
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
        lacking: str | None = None,
    ) -> None:
        """compile: makes the automaton, None for any text. pattern: of ``regex``. lacking: the feature that the
        backend would need and has not."""
        self.name = name
        """As it stands in messages: ``int``, ``Verdict``, ``Search | Finish``, ``regex('[a-z]+')``."""
        self.pattern = pattern
        self._parse = parse
        self._compile = compile
        self._choices = choices
        self._partial = partial
        self._lacking = lacking

    def __repr__(self) -> str:
        return f"OutputType({self.name})"

    @cached_property
    def dfa(self) -> ByteDFA | None:
        """The automaton of the type's texts, None for any text; compiled at the first use.

        Raises UnsatisfiableConstraint, InvalidRegex or UnsupportedByBackend.
        """
        self.check()
        return self._compile() if self._compile is not None else None

    def check(self) -> None:
        """Raises UnsupportedByBackend if the backend lacks the feature that the type needs."""
        if self._lacking is not None:
            raise UnsupportedByBackend(f"{self.name}: this backend has no {self._lacking} constraints")

    @property
    def finite(self) -> bool:
        """Whether there is a longest text."""
        return self.max_bytes is not None

    @property
    def max_bytes(self) -> int | None:
        """Bytes of the longest text, None if there is no longest. Raises as ``dfa`` does."""
        return self.dfa.max_bytes if self.dfa is not None else None

    def constraint(self, vocabulary: Vocabulary) -> Constraint | None:
        """The constraint on tokens of ``vocabulary``, None for any text. Raises as ``dfa`` does."""
        return constraint_of(self.dfa, vocabulary) if self.dfa is not None else None

    def parse(self, text: str) -> T_co:
        """The value of ``text``, which satisfies the constraint. Raises ValidationFailed if a validator refuses it."""
        try:
            return self._parse(text)
        except (ValidationError, ValueError, ArithmeticError, KeyError) as error:
            raise ValidationFailed(f"{self.name}: the text {_shown(text)} was refused: {error}") from error

    def partial(self, text: str) -> Any:
        """What there is of a value whose text broke off: containers as far as they go, else the text itself."""
        return self._partial(text)

    def choices(self) -> list[tuple[T_co, str]] | None:
        """Values and their bare texts of a ``Literal``, ``Enum`` or ``bool``; None for other types."""
        return self._choices() if self._choices is not None else None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 200 else text[:200] + "...")
