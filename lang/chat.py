"""Roles to token segments, by the model's own chat template, without ever rendering a conversation twice.

The template is rendered with a placeholder for each turn's content. What stands between two placeholders closes one
turn and opens the next; that text is fixed by the roles alone, so it is tokenised once and appended once. Content is
joined with the template's own text around it before it is tokenised, as a whole rendering would, but a special token
spelled inside content stays text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from jinja2 import TemplateError

from ..runtime.tokenizer import Tokenizer
from .errors import NoChatTemplate, TemplateRefused

Roles = tuple[str, ...]

_PLACEHOLDER = "\u2402{}\u2403"  # control pictures: no template and no tokenizer gives them a meaning
_PROBE = (("system", "Be brief."), ("user", "One?"), ("assistant", "Two."), ("user", "Three?"), ("assistant", "Four."))


@dataclass(frozen=True, slots=True)
class Segment:
    """Template text between two contents, as (special token id or plain text) pieces."""

    pieces: tuple[int | str, ...]

    def encode(self, tokenizer: Tokenizer, content: str = "") -> list[int]:
        """Ids of the segment followed by ``content``, which is tokenised together with the segment's last text."""
        ids: list[int] = []
        text = ""
        for piece in self.pieces:
            if isinstance(piece, str):
                text += piece
            else:
                ids += tokenizer.encode(text) if text else ()
                ids.append(piece)
                text = ""
        text += content
        return ids + (tokenizer.encode(text) if text else [])


class ChatFormat:
    """The segments of one model's chat template. Immutable but for memoisation; one per tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        specials = sorted(tokenizer.special_ids, key=len, reverse=True)
        self._specials = re.compile("|".join(map(re.escape, specials))) if specials else None
        self._memo: dict[tuple[Roles, bool], Segment] = {}
        self._trims: dict[str, bool] = {}

    def turn(self, roles: Roles, role: str) -> Segment:
        """What stands between the content of the last turn of ``roles`` (or the beginning) and a turn of ``role``.

        Raises NoChatTemplate without a template, TemplateRefused where the template forbids the sequence.
        """
        return self._segment((*roles, role), generation=False)

    def folded(self, system: str, role: str) -> Segment:
        """A first turn of ``role`` with the system text that the template folds into it, as Llama 2's and Mistral's do.

        Raises TemplateRefused where the template takes no system turn at all.
        """
        rendered = self._render(("system", role))
        first, second = (rendered.index(_PLACEHOLDER.format(i)) for i in (0, 1))
        begin = self._split(rendered[:first])
        between = self._split(rendered[first + len(_PLACEHOLDER.format(0)) : second])
        return Segment((*begin.pieces, system, *between.pieces))

    def generation(self, roles: Roles) -> Segment:
        """What stands between the last turn's content and what the model is to write."""
        return self._segment(roles, generation=True)

    def bare_header(self) -> Segment:
        """What opens an assistant turn, without what closes the turn before it."""
        whole = self._render(("user",), generation=True)
        marker = _PLACEHOLDER.format(0)
        before = self._render(("user",))
        closing = before[before.index(marker) + len(marker) :]
        return self._split(whole[whole.index(marker) + len(marker) :].removeprefix(closing))

    def content(self, role: str, text: str) -> str:
        """``text`` as the template would show it: some templates strip it."""
        if role not in self._trims:
            self._trims[role] = self._is_trimmed(role)
        return text.strip() if self._trims[role] else text

    def _is_trimmed(self, role: str) -> bool:
        for roles in ((role,), (role, "user") if role == "system" else ("user", role)):  # the first it takes
            try:
                probe = self._render(roles, padding="  ")
            except TemplateRefused:
                continue
            return f"  {_PLACEHOLDER.format(roles.index(role))}  " not in probe
        return False

    def end_ids(self, roles: Roles) -> frozenset[int]:
        """Special tokens with which the template closes an assistant turn, beside the model's end-of-sequence."""
        closing = self._closing(roles)
        first = closing.pieces[0] if closing.pieces else None
        return frozenset([first]) if isinstance(first, int) else frozenset()

    def terminator(self, roles: Roles) -> int | None:
        """The token that ends an assistant turn: the template's own, or else the model's end-of-sequence."""
        ends = self.end_ids(roles) or self.tokenizer.vocabulary.eos_ids
        return min(ends) if ends else None

    def unstable(self) -> str | None:
        """Why the template is not prefix-stable: what it renders differently as a conversation goes on; None if it is.

        A conversation is then rendered segment by segment, which differs from what the template renders as a whole.
        """
        if self.tokenizer.chat_template is None:
            return None
        for start in (0, 1):  # with a system turn and without
            turns = _PROBE[start:]
            text, roles = "", ()  # type: tuple[str, Roles]
            try:
                for role, content in turns:
                    segment = self.generation(roles) if role == "assistant" else self.turn(roles, role)
                    text += self._spell(segment) + content
                    roles = (*roles, role)
                whole = self.tokenizer.render([{"role": r, "content": t} for r, t in turns], generation_prompt=False)
            except (TemplateError, TemplateRefused):
                continue
            if not whole.startswith(text):
                at = next((i for i, (a, b) in enumerate(zip(text, whole, strict=False)) if a != b), len(whole))
                return (
                    "the chat template renders an earlier part of a conversation differently once it goes on: "
                    f"{whole[max(0, at - 30) : at + 30]!r} where the turns were appended as "
                    f"{text[max(0, at - 30) : at + 30]!r}"
                )
        return None

    # ---- rendering
    def _segment(self, roles: Roles, *, generation: bool) -> Segment:
        key = (roles, generation)
        if key not in self._memo:
            if len(self._memo) > 4096:  # long agent loops: a new key per turn
                self._memo.clear()
            before = roles if generation else roles[:-1]
            rendered = self._render(roles, generation=generation)
            start = 0
            if before:
                marker = _PLACEHOLDER.format(len(before) - 1)
                start = rendered.index(marker) + len(marker)
            end = len(rendered) if generation else rendered.index(_PLACEHOLDER.format(len(roles) - 1))
            self._memo[key] = self._split(rendered[start:end])
        return self._memo[key]

    @lru_cache(maxsize=256)  # noqa: B019 - a format lives as long as its model
    def _closing(self, roles: Roles) -> Segment:
        turns = roles if roles and roles[-1] == "assistant" else (*roles, "assistant")
        rendered = self._render(turns)
        marker = _PLACEHOLDER.format(len(turns) - 1)
        return self._split(rendered[rendered.index(marker) + len(marker) :])

    def _render(self, roles: Roles, *, generation: bool = False, padding: str = "") -> str:
        if self.tokenizer.chat_template is None:
            raise NoChatTemplate(
                "the model has no chat template, so it knows no roles. Use raw text (c += ... and c.gen), or a model "
                "that was tuned for chat."
            )
        messages = [
            {"role": role, "content": padding + _PLACEHOLDER.format(i) + padding} for i, role in enumerate(roles)
        ]
        try:
            rendered = self.tokenizer.render(messages, generation_prompt=generation)
        except TemplateError as error:
            raise TemplateRefused(
                f"the model's chat template refuses the turns {', '.join(roles)}: {error}. "
                "Change the order of roles, or use raw text."
            ) from error
        lost = [role for i, role in enumerate(roles) if _PLACEHOLDER.format(i) not in rendered]
        if lost:
            raise TemplateRefused(
                f"the model's chat template drops the {lost[0]} turn in {', '.join(roles)}. "
                "Put its text into another turn."
            )
        return rendered

    def _split(self, text: str) -> Segment:
        if self._specials is None:
            return Segment((text,) if text else ())
        pieces: list[int | str] = []
        at = 0
        for match in self._specials.finditer(text):
            if match.start() > at:
                pieces.append(text[at : match.start()])
            pieces.append(self.tokenizer.special_ids[match.group()])
            at = match.end()
        if at < len(text):
            pieces.append(text[at:])
        return Segment(tuple(pieces))

    def _spell(self, segment: Segment) -> str:
        spelling = {i: s for s, i in self.tokenizer.special_ids.items()}
        return "".join(p if isinstance(p, str) else spelling[p] for p in segment.pieces)


def spell(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Text of ``ids`` with special tokens spelled out."""
    spelling = {i: s.encode() for s, i in tokenizer.special_ids.items()}
    token_bytes = tokenizer.vocabulary.token_bytes
    return b"".join(spelling[i] if i in spelling else token_bytes[i] or b"" for i in ids).decode("utf-8", "replace")
