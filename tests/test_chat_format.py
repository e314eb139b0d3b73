"""Chat templates of other families: a context holds what the template would render as a whole, turn by turn."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

import furcate as fc
from furcate import Context, program
from furcate.lang.chat import ChatFormat
from furcate.runtime.models.byte_tokenizer import BOS, IM_END, IM_START, PAD, ByteTokenizer
from furcate.testing import Scripted

TURNS = "{% for m in messages %}{{ '<|start|>' + m['role'] + '\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
PROMPT = "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"

TRIMMED = (
    "{{ '<s>' }}{% for m in messages %}"
    "{{ '<|start|>' + m['role'] + '<|sep|>\n\n' + m['content'] | trim + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant<|sep|>\n\n' }}{% endif %}"
)
"""Trims contents and begins with the beginning-of-sequence token."""

DATED = (
    "{{ '<s>' }}{% if messages[0]['role'] == 'system' %}{% set said = messages[0]['content'] | trim %}"
    "{% set rest = messages[1:] %}{% else %}{% set said = '' %}{% set rest = messages %}{% endif %}"
    "{{ '<|start|>system<|sep|>\n\nToday: ' + strftime_now('%d %b %Y') + '\n\n' + said + '<|end|>' }}"
    "{% for m in rest %}{{ '<|start|>' + m['role'] + '<|sep|>\n\n' + m['content'] | trim + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant<|sep|>\n\n' }}{% endif %}"
)
"""Always has a system turn, with a date."""

ALTERNATING = (
    "{{ '<s>' }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if m['role'] == 'user' %}"
    "{{ '[INST] ' + m['content'] + ' [/INST]' }}{% elif m['role'] == 'assistant' %}{{ m['content'] + '<|end|>' }}"
    "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
)
"""No headers, no system turn, no two user turns in a row."""

FOLDED = (
    "{{ '<s>' }}{% if messages[0]['role'] == 'system' %}{% set said = '<<SYS>>' + messages[0]['content'] | trim + "
    "'<</SYS>>\n\n' %}{% set rest = messages[1:] %}{% else %}{% set said = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if m['role'] == 'user' %}"
    "{{ '[INST] ' + (said if loop.first else '') + m['content'] + ' [/INST]' }}"
    "{% else %}{{ m['content'] + '<|end|>' }}{% endif %}{% endfor %}"
)
"""Folds the system text into the first user turn, as Llama 2's and Mistral's templates do."""

DEFAULTED = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|start|>system\nBe kind.<|end|>\n' }}{% endif %}" + TURNS + PROMPT
)
"""A default system prompt."""

FORGETFUL = (
    "{% for m in messages %}{% if m['role'] == 'assistant' and not loop.last %}"
    "{% set said = m['content'].split('</think>')[-1] %}{% else %}{% set said = m['content'] %}{% endif %}"
    "{{ '<|start|>' + m['role'] + '\n' + said + '<|end|>\n' }}{% endfor %}" + PROMPT
)
"""Drops what an earlier reply has thought."""


class Family(ByteTokenizer):
    """Bytes with another template."""

    def __init__(self, template: str, bos: bool) -> None:
        super().__init__()
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

        def refuse(message: str) -> None:
            raise TemplateError(message)

        environment.globals |= {"raise_exception": refuse, "strftime_now": lambda _: "26 Jul 2024"}
        self.source, self.compiled, self.bos = template, environment.from_string(template), BOS if bos else None

    @property
    def chat_template(self) -> str:
        return self.source

    @property
    def bos_id(self) -> int | None:
        return self.bos

    @property
    def special_ids(self) -> Mapping[str, int]:
        return {"<s>": BOS, "<|start|>": IM_START, "<|end|>": IM_END, "<|sep|>": PAD}

    def render(self, messages: Sequence[Mapping[str, str]], *, generation_prompt: bool) -> str:
        return self.compiled.render(messages=list(messages), add_generation_prompt=generation_prompt)

    def whole(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Ids of the whole rendering, special tokens recognised."""
        rendered = self.render([{"role": r, "content": t} for r, t in messages], generation_prompt=False)
        ids: list[int] = []
        for piece in re.split("(<s>|<[|](?:start|end|sep)[|]>)", rendered):
            ids += [self.special_ids[piece]] if piece in self.special_ids else self.encode(piece)
        return ids


def run(body, tokenizer: Family, answers):
    model = Scripted(answers)
    model.tokenizer = tokenizer
    return program(body).using(model).run()


@pytest.mark.parametrize("system", [True, False])
@pytest.mark.parametrize(
    ("template", "bos"),
    [(TRIMMED, True), (DATED, True), (ALTERNATING, True), (FOLDED, True), (DEFAULTED, False), (FORGETFUL, False)],
)
def test_turn_by_turn_gives_the_tokens_of_the_whole(template, bos, system):
    tokenizer = Family(template, bos)
    said = [("user", "  Hello\n"), ("assistant", "One."), ("user", "More é"), ("assistant", "Two.")]
    if system and template != ALTERNATING:
        said.insert(0, ("system", " Be brief. "))

    def body(c: Context):
        for role, text in said:
            if role == "assistant":
                c.gen(max_tokens=20)
            else:
                getattr(c, role)(text)
        return list(c.tokens)

    tokens = run(body, tokenizer, ["One.", "Two."]).value
    whole = tokenizer.whole(said)
    assert whole[: len(tokens)] == tokens
    assert tokens.count(BOS) == bos
    assert set(whole[len(tokens) :]) <= {IM_END, *b"\n"}


def test_a_default_system_prompt_and_the_beginning_appear_once_also_in_branches():
    def body(c: Context):
        c.user("a")
        return c.fork(2, lambda b, i: (b.gen(max_tokens=4), b.user("b"), b.transcript)[-1])

    for branch in run(body, Family(DEFAULTED, False), ["x", "y"]).value:
        assert branch.count("Be kind.") == 1


def test_two_turns_of_a_role_are_merged_only_where_the_template_refuses_them():
    def body(c: Context):
        c.user("a")
        c.user("b")
        c.gen(max_tokens=4)
        return c.transcript, len(c.messages)

    refused = run(body, Family(ALTERNATING, True), ["x"])
    assert refused.value == ("<s>[INST] a\n\nb [/INST]x", 2)
    assert [e.kind for e in refused.events if e.kind == "merged turns"] == ["merged turns"]
    allowed = run(body, Family(DEFAULTED, False), ["x"])
    assert allowed.value[1] == 3
    assert not [e for e in allowed.events if e.kind == "merged turns"]


def test_a_role_that_the_template_refuses_says_what_to_do():
    def body(c: Context):
        with pytest.raises(fc.TemplateRefused, match="refuses the turns system"):
            c.system("Be brief.")
        c.user("a")
        return c.gen(max_tokens=4)

    assert run(body, Family(ALTERNATING, True), ["x"]).value == "x"


def test_a_system_text_that_the_template_folds_waits_for_the_first_user_turn():
    def body(c: Context):
        c.system("Be")
        c += " brief."
        assert list(c.tokens) == []
        assert c.messages == [{"role": "system", "content": "Be brief."}]
        with pytest.raises(fc.TemplateRefused), c.scratch() as t:
            t.gen(max_tokens=4)
        branch = c.fork(1, lambda b, i: (b.user("a"), b.gen(max_tokens=4), b.transcript)[-1])
        c.user("b")
        c.gen(max_tokens=4)
        return branch, c.transcript

    assert run(body, Family(FOLDED, True), ["x", "y"]).value == (
        ["<s>[INST] <<SYS>>Be brief.<</SYS>>\n\na [/INST]x"],
        "<s>[INST] <<SYS>>Be brief.<</SYS>>\n\nb [/INST]y",
    )


def test_an_earlier_thought_stays_in_the_context():
    def body(c: Context):
        c.user("a")
        c.gen(max_tokens=40)
        before = list(c.tokens)
        c.user("b")
        return before, list(c.tokens)

    before, after = run(body, Family(FORGETFUL, False), ["hm</think>yes"]).value
    assert after[: len(before)] == before


@pytest.mark.parametrize("template", [TRIMMED, DATED, ALTERNATING, DEFAULTED, FORGETFUL])
def test_select_ends_its_choices_with_the_templates_own_end_of_turn(template):
    tokenizer = Family(template, True)
    assert ChatFormat(tokenizer).terminator(("user", "assistant")) == IM_END

    def body(c: Context):
        c.user("a")
        return c.select(["no", "no, never"], how="pmi").value

    assert run(body, tokenizer, ["no"]).value == "no"


def test_the_probe_finds_templates_that_rewrite_what_they_have_rendered():
    rewriting = "{% for m in messages %}{{ '<|start|>' + m['role'] + ' of ' + messages | length | string + '\n' }}"
    rewriting += "{{ m['content'] + '<|end|>' }}{% endfor %}" + PROMPT
    assert "renders an earlier part" in (ChatFormat(Family(rewriting, False)).unstable() or "")
    for stable in (TRIMMED, DATED, ALTERNATING, DEFAULTED):
        assert ChatFormat(Family(stable, True)).unstable() is None
