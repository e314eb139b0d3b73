"""A tokenizer read from ``tokenizer.json``, in which text can never become a special token."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2
from tokenizers import Tokenizer as RustTokenizer

from ..errors import ModelLoadError, UnsupportedByBackend
from ..vocabulary import Vocabulary
from .chat_template import ChatTemplate
from .token_bytes import LONE_SURROGATE, token_bytes


class HFTokenizer:
    """``Tokenizer`` over the ``tokenizers`` library. Immutable, safe from any thread.

    No dummy space is put before a text, whatever the model's own tokenizer does at the start of one: text is appended
    in the middle of a sequence, and ``text_of(encode(text))`` is the text.
    """

    __slots__ = ("_bos_id", "_special_ids", "_special_set", "_template", "_tokenizer", "_vocabulary")

    def __init__(
        self,
        definition: str,
        *,
        size: int,
        eos_ids: Iterable[int],
        chat_template: str | None = None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        add_bos: bool | None = None,
    ) -> None:
        """``definition`` is the text of ``tokenizer.json``; ``size`` the length of a logits row, at least the ids.

        ``add_bos`` None: as the tokenizer's own post-processor does. Raises ModelLoadError.
        """
        try:
            parsed: dict[str, Any] = json.loads(definition)
            _drop_dummy_prefix(parsed)
            self._tokenizer = RustTokenizer.from_str(json.dumps(parsed))
        except Exception as error:  # the library raises bare Exception for a malformed file
            raise ModelLoadError(f"tokenizer.json cannot be read: {error}") from error
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        added = parsed.get("added_tokens", ())
        self._special_ids: Mapping[str, int] = MappingProxyType(
            {entry["content"]: entry["id"] for entry in added if entry["special"] and entry["id"] < size}
        )
        self._special_set = frozenset(self._special_ids.values())
        spellings = self._tokenizer.get_vocab(with_added_tokens=True)
        # A special token without an embedding (Gemma 3's soft image token) is dropped; text must not lead to one.
        special = {entry["id"] for entry in added if entry["special"]}
        beyond = [spelling for spelling, token in spellings.items() if token >= size and token not in special]
        if beyond:
            raise ModelLoadError(
                f"the tokenizer does not fit the model: {len(beyond)} of its {len(spellings)} tokens, {beyond[0]!r} "
                f"among them, have ids from {size} on, but the model has {size} embeddings. Take tokenizer.json from "
                "where the weights come from."
            )
        named_eos = [self._special_ids[eos_token]] if eos_token and eos_token in self._special_ids else []
        self._vocabulary = Vocabulary(
            token_bytes(spellings, parsed, size), frozenset(i for i in (*eos_ids, *named_eos) if 0 <= i < size)
        )
        self._bos_id = self._find_bos(bos_token, add_bos)
        self._template: ChatTemplate | None = None
        if chat_template:
            try:
                self._template = ChatTemplate(chat_template, bos_token=bos_token or "", eos_token=eos_token or "")
            except jinja2.TemplateSyntaxError as error:
                raise ModelLoadError(f"the chat template cannot be compiled: {error}") from error

    def _find_bos(self, bos_token: str | None, add_bos: bool | None) -> int | None:
        if add_bos is None:
            first = self._tokenizer.encode("", add_special_tokens=True).ids[:1]
            return first[0] if first and first[0] in self._special_set else None
        return self._special_ids.get(bos_token or "") if add_bos else None

    @property
    def vocabulary(self) -> Vocabulary:
        """As many ids as a logits row has; special and unused ones have no bytes."""
        return self._vocabulary

    @property
    def bos_id(self) -> int | None:
        """The id that the model wants once at the root, or None."""
        return self._bos_id

    @property
    def special_ids(self) -> Mapping[str, int]:
        """Special tokens by spelling; read-only."""
        return self._special_ids

    @property
    def chat_template(self) -> str | None:
        """Source of the chat template, or None for a base model."""
        return None if self._template is None else self._template.source

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``; special spellings are ordinary text. No BOS. Lone surrogates become U+FFFD."""
        clean = LONE_SURROGATE.sub("\ufffd", text)
        ids: list[int] = self._tokenizer.encode(clean, add_special_tokens=False).ids
        if self._special_set.isdisjoint(ids):
            return ids
        # A piece of the model's own vocabulary happened to be a special spelling: cut the text inside each of them.
        cuts = sorted({i + 1 for s in self._special_ids for i in _occurrences(clean, s)})
        parts = [clean[a:b] for a, b in zip([0, *cuts], [*cuts, len(clean)], strict=True)]
        return [i for part in parts for i in self._tokenizer.encode(part, add_special_tokens=False).ids]

    def render(self, messages: Sequence[Mapping[str, str]], *, generation_prompt: bool) -> str:
        """The chat template applied to ``messages``; dates are the load's.

        Raises jinja2.TemplateError where the template refuses the messages, UnsupportedByBackend without a template.
        """
        if self._template is None:
            raise UnsupportedByBackend("this is a base model: it has no chat template. Append raw text instead.")
        return self._template.render(messages, generation_prompt=generation_prompt)


def read_tokenizer(directory: Path, *, size: int, eos_ids: Iterable[int]) -> HFTokenizer:
    """The tokenizer of a model directory: ``tokenizer.json``, ``tokenizer_config.json``, ``chat_template.jinja``.

    Raises ModelLoadError where ``tokenizer.json`` is missing or malformed.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ModelLoadError(f"{directory} has no tokenizer.json; save it with a fast tokenizer first")
    settings = _read_json(directory / "tokenizer_config.json")
    template_file = directory / "chat_template.jinja"
    template = _read_text(template_file) if template_file.is_file() else _template_of(settings)
    definition = _read_text(path)
    return HFTokenizer(
        definition,
        size=size,
        eos_ids=eos_ids,
        chat_template=template,
        bos_token=_spelling(settings.get("bos_token")),
        eos_token=_spelling(settings.get("eos_token")),
        add_bos=settings.get("add_bos_token"),
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path} cannot be read as text: {error}. Fetch it again.") from error


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read_text(path))
    except ValueError as error:
        raise ModelLoadError(f"{path} is not JSON: {error}") from error
    return value if isinstance(value, dict) else {}


def _template_of(settings: Mapping[str, Any]) -> str | None:
    """``chat_template`` of tokenizer_config.json: a string, or a list of named ones of which ``default`` counts."""
    template = settings.get("chat_template")
    if isinstance(template, list):
        return next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template


def _spelling(token: Any) -> str | None:
    """A token of tokenizer_config.json is a string or an object with its content."""
    return token.get("content") if isinstance(token, dict) else token


def _occurrences(text: str, part: str) -> list[int]:
    found, at = [], text.find(part)
    while at >= 0:
        found.append(at)
        at = text.find(part, at + 1)
    return found


def _drop_dummy_prefix(definition: dict[str, Any]) -> None:
    """Take out what puts a space before every text: the Prepend normalizer, Metaspace's and ByteLevel's prefixes."""
    normalizer = definition.get("normalizer")
    if isinstance(normalizer, dict):
        if normalizer.get("type") == "Prepend":
            definition["normalizer"] = None
        elif normalizer.get("type") == "Sequence":
            normalizer["normalizers"] = [n for n in normalizer["normalizers"] if n["type"] != "Prepend"]
    pre = definition.get("pre_tokenizer")
    for part in [pre, *(pre or {}).get("pretokenizers", ())] if isinstance(pre, dict) else []:
        if part["type"] == "Metaspace":
            part["prepend_scheme"] = "never"
        elif part["type"] == "ByteLevel":
            part["add_prefix_space"] = False
