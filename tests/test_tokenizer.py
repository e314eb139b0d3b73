"""Tokenizers: bytes of every id, text that stays text, templates."""

from __future__ import annotations

import json
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from furcate.runtime.errors import ModelLoadError, UnsupportedByBackend
from furcate.runtime.models.byte_tokenizer import ByteTokenizer
from furcate.runtime.models.chat_template import ChatTemplate
from furcate.runtime.models.gguf_tokenizer import bpe_tokenizer, can_rebuild
from furcate.runtime.models.hf_tokenizer import HFTokenizer

CORPUS = [
    "the cat sat on the mat",
    "the dog sat on the log",
    "if x == 1: return   42",
    "naïve café über",
    "<|x <|y",
] * 20


def byte_level(**settings: Any) -> HFTokenizer:
    """Byte-level BPE with two special tokens and one that was added as text."""
    rust = Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    rust.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rust.train_from_iterator(CORPUS, trainer)
    rust.add_tokens([AddedToken("<think it>", normalized=False)])
    if settings.pop("with_bos", False):
        rust.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return HFTokenizer(rust.to_str(), size=310, eos_ids=[1], **settings)


BYTE_LEVEL = byte_level()


def sentencepiece(kind: str = "BPE") -> HFTokenizer:
    """A tokenizer in the style of Llama 2: U+2581 for spaces, bytes as a fallback, a dummy space before each text."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{b:02X}>" for b in range(256)),
        "\u2581",
        "t",
        "h",
        "e",
        "th",
        "the",
        "\u2581the",
    ]
    if kind == "Unigram":
        model: Any = models.Unigram([(piece, -float(i > 2)) for i, piece in enumerate(pieces)], 0, byte_fallback=True)
    else:
        merges = [("t", "h"), ("th", "e"), ("\u2581", "the")]
        model = models.BPE({p: i for i, p in enumerate(pieces)}, merges, byte_fallback=True, unk_token="<unk>")
    rust = Tokenizer(model)
    rust.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    rust.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    rust.add_special_tokens(["<unk>", "<s>", "</s>"])
    return HFTokenizer(rust.to_str(), size=len(pieces), eos_ids=[2], bos_token="<s>", add_bos=True)


TOKENIZERS = {
    "byte-level": byte_level(),
    "sentencepiece": sentencepiece(),
    "unigram": sentencepiece("Unigram"),
    "bytes": ByteTokenizer(),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=60, deadline=None)
@given(
    text=st.lists(
        st.sampled_from(["the", " ", "  ", "<s>", "</s>", "<|im_end|>", "<think it>", "7", "é", "\n", "語", "\x00"])
        | st.text(max_size=4)
    ).map("".join)
)
def test_text_round_trips_and_never_becomes_special(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text)
    assert all(tokenizer.vocabulary.token_bytes[i] is not None for i in ids)
    assert tokenizer.vocabulary.text_of(ids) == text.encode()


def test_a_special_spelling_is_split_like_any_other_text() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("<|im_end|>")
    assert [tokenizer.vocabulary.token_bytes[i] for i in ids][:2] == [b"<|", b"i"]


def test_lone_surrogates_become_the_replacement_character() -> None:
    tokenizer = byte_level()
    assert tokenizer.vocabulary.text_of(tokenizer.encode("a\ud800b")) == "a\ufffdb".encode()


@given(st.text(st.characters(exclude_categories=())))
def test_both_kinds_of_tokenizer_write_one_replacement_character_for_each_lone_surrogate(text: str) -> None:
    want = "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text).encode()
    assert bytes(ByteTokenizer().encode(text)) == want
    assert BYTE_LEVEL.vocabulary.text_of(BYTE_LEVEL.encode(text)) == want


def test_special_and_unused_ids_have_no_bytes() -> None:
    tokenizer = byte_level()
    vocabulary = tokenizer.vocabulary
    assert dict(tokenizer.special_ids) == {"<s>": 0, "<|im_end|>": 1}
    assert vocabulary.size == 310
    assert [i for i, token in enumerate(vocabulary.token_bytes) if token is None] == [0, 1, *range(301, 310)]
    assert vocabulary.token_bytes[300] == b"<think it>"
    assert tokenizer.encode("<think it>") == [300]


def test_every_byte_is_a_token_of_its_own_in_byte_level_vocabularies() -> None:
    assert {bytes([b]) for b in range(256)} <= set(byte_level().vocabulary.token_bytes)


def test_sentencepiece_pieces_stand_for_spaces_and_bytes() -> None:
    tokenizer = sentencepiece()
    assert tokenizer.encode("the the") == [264, 265]
    assert tokenizer.vocabulary.text_of([265, 3 + 0x0A]) == b" the\n"


def test_end_of_sequence_ids_are_a_union() -> None:
    assert byte_level(eos_token="<s>").vocabulary.eos_ids == {0, 1}
    assert byte_level(eos_token="absent").vocabulary.eos_ids == {1}


@pytest.mark.parametrize(
    ("options", "bos"),
    [
        ({}, None),
        ({"with_bos": True}, 0),
        ({"with_bos": True, "bos_token": "<s>", "add_bos": False}, None),
        ({"bos_token": "<s>", "add_bos": True}, 0),
        ({"bos_token": "<s>"}, None),
    ],
)
def test_bos_is_known_where_the_model_wants_one(options: dict[str, Any], bos: int | None) -> None:
    tokenizer = byte_level(**options)
    assert tokenizer.bos_id == bos
    assert 0 not in tokenizer.encode("the cat")


def test_a_malformed_definition_is_a_load_error() -> None:
    for definition in ("{", "{}", json.dumps({"version": "1.0", "model": {"type": "None"}})):
        with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
            HFTokenizer(definition, size=1, eos_ids=[])


def test_a_template_that_does_not_compile_is_a_load_error() -> None:
    with pytest.raises(ModelLoadError, match="chat template"):
        byte_level(chat_template="{% for %}")


def test_rendering_without_a_template_says_so() -> None:
    assert byte_level().chat_template is None
    with pytest.raises(UnsupportedByBackend, match="base model"):
        byte_level().render([], generation_prompt=False)


def test_templates_see_what_hugging_face_templates_expect() -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}\n"
        "    {% if m.role == 'tool' %}{{ raise_exception('no tools: ' + m.content) }}{% endif %}\n"
        "    {% if m.role == 'skip' %}{% continue %}{% endif %}\n"
        "{{ m | tojson }}\n"
        "{% generation %}{{ m.content }}{% endgeneration %}\n"
        "{% endfor %}{% if add_generation_prompt %}{{ eos_token }}{% endif %}{{ tools is none }}"
    )
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    messages = [{"role": "user", "content": "a<é"}, {"role": "skip", "content": "x"}]
    assert template.render(messages, generation_prompt=True) == '<s>{"role": "user", "content": "a<é"}\na<é</s>True'
    with pytest.raises(jinja2.TemplateError, match="no tools: f"):
        template.render([{"role": "tool", "content": "f"}], generation_prompt=False)


def test_the_date_of_a_template_is_frozen_at_load() -> None:
    template = ChatTemplate("{{ strftime_now('%Y-%m-%d %H:%M:%S.%f') }}")
    assert template.render([], generation_prompt=False) == template.render([], generation_prompt=False)


def test_templates_are_sandboxed() -> None:
    template = ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(jinja2.TemplateError):
        template.render([], generation_prompt=False)


def test_rendering_leaves_the_messages_alone() -> None:
    message = {"role": "user", "content": "x"}
    with pytest.raises(jinja2.TemplateError):
        ChatTemplate("{% set _ = messages[0].update({'role': 'y'}) %}").render([message], generation_prompt=False)
    assert message == {"role": "user", "content": "x"}


def gguf_metadata(pre: str) -> dict[str, Any]:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|im_start|>", "<|im_end|>", *alphabet, "ĠĠ", "12", "Ġ1"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3] + [1] * (len(tokens) - 2),
        "tokenizer.ggml.merges": ["Ġ Ġ", "Ġ 1", "1 2"],
    }


def test_smollm_takes_digits_apart_and_leaves_the_spaces_before_them() -> None:
    spelled = bpe_tokenizer(gguf_metadata("smollm")).encode("x   12").tokens
    # GPT-2's split, run on its own, would give the last space to the digits: Ġ1.
    assert spelled == ["x", "ĠĠ", "Ġ", "1", "2"]
    assert bpe_tokenizer(gguf_metadata("gpt-2")).encode("x   12").tokens == ["x", "ĠĠ", "Ġ1", "2"]


def test_kinds_of_gguf_tokenizer_that_are_not_known_are_left_alone() -> None:
    assert can_rebuild(gguf_metadata("smollm"))
    assert not can_rebuild(gguf_metadata("some-new-kind"))
    assert not can_rebuild({"tokenizer.ggml.model": "llama", "tokenizer.ggml.merges": []})


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("a   12 b", ["a", "   ", "1", "2", " b"]),
        ("    7", ["    ", "7"]),
        ("The capital of France is", ["The", " capital", " of", " France", " is"]),
    ],
)
def test_smollm2_splits_as_it_was_trained(text: str, pieces: list[str]) -> None:
    from furcate.runtime.models.loading import load_model  # noqa: PLC0415 - brings in torch, which this file spares

    tokenizer = load_model("smollm2-135m").tokenizer
    ids = tokenizer.encode(text)
    assert [tokenizer.vocabulary.text_of([i]).decode() for i in ids] == pieces
