"""The turns of one context: which are closed, which one is open, and what each says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from .chat import ChatFormat, Roles, Segment
from .errors import TemplateRefused

Role = Literal["system", "user", "assistant"]


class Message(TypedDict):
    """One turn, as chat APIs write it."""

    role: Role
    content: str


class Turns:
    """A context's turn state. The last turn stays open until the next role call closes it."""

    __slots__ = ("_format", "_texts", "held", "roles")

    def __init__(
        self, chat: ChatFormat, roles: tuple[Role, ...] = (), texts: tuple[str, ...] = (), held: bool = False
    ) -> None:
        self._format = chat
        self.roles: tuple[Role, ...] = roles
        self._texts: tuple[str, ...] = texts
        self.held = held
        """Whether the system text waits for the first user turn, into which the template folds it."""

    def copy(self) -> Turns:
        """A snapshot: what a branch inherits, and what a mark keeps."""
        return Turns(self._format, self.roles, self._texts, self.held)

    @property
    def open_role(self) -> Role | None:
        """The role of the open turn; None in raw text."""
        return self.roles[-1] if self.roles else None

    def open(self, role: Role, text: str) -> tuple[Segment, str, bool]:
        """Close the open turn and open one of ``role`` that begins with ``text``.

        Returns the segment and the content to append, and whether the turn was merged into the open one of the same
        role, because the template refuses two in a row.
        """
        content = self._format.content(role, text)
        if self.held:
            segment = self._format.folded(self._texts[0], role)
            self.roles, self._texts, self.held = (*self.roles, role), (*self._texts, content), False
            return segment, content, False
        try:
            segment = self._format.turn(self.roles, role)
        except TemplateRefused:
            if role == "system" and not self.roles and self._folds():
                self.roles, self._texts, self.held = ("system",), (content,), True
                return Segment(()), "", False
            if self.open_role != role:
                raise
            self.say("\n\n" + content)
            return Segment(()), "\n\n" + content, True
        self.roles = (*self.roles, role)
        self._texts = (*self._texts, content)
        return segment, content, False

    def open_for_generation(self) -> Segment | None:
        """Open the assistant turn that a ``gen`` or ``select`` writes into; None if one is open, or in raw text."""
        if not self.roles or self.roles[-1] == "assistant":
            return None
        segment = self._format.generation(self.roles)
        self.roles = (*self.roles, "assistant")
        self._texts = (*self._texts, "")
        return segment

    def _folds(self) -> bool:
        try:
            self._format.folded("", "user")
        except TemplateRefused:
            return False
        return True

    def say(self, text: str) -> None:
        """Add ``text`` to the open turn; raw text belongs to no turn."""
        if self.roles:
            self._texts = (*self._texts[:-1], self._texts[-1] + text)

    def messages(self) -> Sequence[Message]:
        """All turns so far, the open one included."""
        return [{"role": role, "content": text} for role, text in zip(self.roles, self._texts, strict=True)]

    def ending(self) -> Roles:
        """The roles that decide how an assistant turn ends here."""
        return self.roles
