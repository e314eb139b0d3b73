"""The ``select`` operation: choices to token sequences, scores to a distribution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..runtime.metrics import Usage
from ..runtime.requests import ScoreRequest, ScoreResult
from .choice import HOWS, Choice, How, choice_text, choose, greedy_scores
from .dispatch import assistant_turn, dispatch
from .errors import ContextOverflow, FurcateError, InvalidChoices
from .operation import OpRecord
from .run import Event
from .types import resolve

if TYPE_CHECKING:
    from .context import Context
    from .execution import Place
    from .task import Task

RESPLIT_TOKENS = 8
"""At most this many tokens of the last appended text are looked at for the last word piece."""


def select(context: Context, choices: Any, how: How, name: str, end: str | None) -> Choice[Any]:
    """Run one ``select``; see ``Context.select``."""
    task = context._enter("select")
    execution = context._execution
    if how not in HOWS:
        raise ValueError(f"c.select: how={how!r} must be one of {', '.join(HOWS)}")
    values, texts = _choices(choices)
    label = name or "select"
    place = execution.place(
        "Select", f"{label}: {' | '.join(texts[:6])}", context, depth=2, task=task, attrs={"choices": texts, "how": how}
    )
    context._next_ordinal()
    with assistant_turn(context):
        cut, sequences = _joint(context, texts)
        last = _terminators(context, end)
        _require_room(context, max(map(len, sequences)) + len(last), place)
        path = f"{context.path}/{label}"
        if context._branch.length == 0:
            raise FurcateError(
                f"{context.path}: select on an empty context, and the model has no beginning-of-sequence token to "
                f"start from. Append some text first ({place.where})."
            )
        scored = tuple((*sequence, *last) for sequence in sequences)
        request = ScoreRequest(scored, hints=place.hints(), program=execution.number, label=path)
        with _cut_at(context, cut):
            result: ScoreResult = dispatch(context, task, lambda: context._branch.score(request), place, path)
            usage = result.usage
            if how == "pmi":
                bare, more = _unconditional(context, task, scored, place, path)
                scores = [sum(given) - sum(alone) for given, alone in zip(result.logprobs, bare, strict=True)]
                usage += more
            else:
                scores = _scores(how, scored, result)
            choice = choose(values, scores)
    chosen = sequences[choice.index]
    context._append_ids(chosen)
    context._open_text = context._branch.length
    context._turns.say(texts[choice.index])
    context._charge(usage, place.node)
    context._last = OpRecord(texts[choice.index], chosen, result.logprobs[choice.index][: len(chosen)], "choice", usage)
    execution.emit(Event("select", label, context.path, texts[choice.index]))
    return choice


@contextmanager
def _cut_at(context: Context, length: int) -> Iterator[None]:
    """Drop the tokens from ``length`` on; a failure puts them back."""
    dropped = context._branch.tokens()[length:]
    if dropped:
        context._branch.truncate(length)
    try:
        yield
    except BaseException:
        if dropped and not context._closed:
            context._branch.append(dropped)
        raise


def _choices(choices: Any) -> tuple[list[Any], list[str]]:
    """Values and texts of a sequence of choices, or of a type with finitely many values."""
    if isinstance(choices, str):
        raise TypeError("c.select takes a sequence of choices or a type such as Literal[...]; this is one string")
    if isinstance(choices, bytes | Set | Mapping | Iterator):
        raise TypeError(
            f"c.select takes a sequence of choices, whose order counts, not {type(choices).__name__}: give a list"
        )
    if isinstance(choices, Sequence):
        pairs = [(choice, choice_text(choice)) for choice in choices]
    else:
        listed = resolve(choices).choices()
        if listed is None:
            raise TypeError(
                f"c.select: {resolve(choices).name} has no finite list of values. Use Literal[...], an Enum, bool or a "
                "sequence."
            )
        pairs = list(listed)
    if not pairs:
        raise InvalidChoices("c.select needs at least one choice")
    values, texts = [value for value, _ in pairs], [text for _, text in pairs]
    seen: dict[str, int] = {}
    for i, text in enumerate(texts):
        if not text:
            raise InvalidChoices(f"c.select: choice {i} is an empty text")
        if text in seen:
            raise InvalidChoices(f"c.select: choices {seen[text]} and {i} have the same text {text!r}")
        seen[text] = i
    _require_distinct(values)
    return values, texts


def _require_distinct(values: Sequence[Any]) -> None:
    """The distribution is a mapping from the values, so they must be hashable and different."""
    places: dict[Any, int] = {}
    for i, value in enumerate(values):
        try:
            other = places.setdefault(value, i)
        except TypeError as error:
            raise InvalidChoices(
                f"c.select: choice {i} is of a type that cannot be hashed, {type(value).__name__}; give texts, and "
                "look the chosen one up by choice.index"
            ) from error
        if other != i:
            raise InvalidChoices(
                f"c.select: choices {other} and {i} are equal, {values[other]!r} == {value!r}; give their texts instead"
            )


def _joint(context: Context, texts: Sequence[str]) -> tuple[int, list[tuple[int, ...]]]:
    """Token sequences of the choices, tokenised together with the last word piece of the text before them.

    Returns the length at which the branch is to be cut and the sequences that follow. Generated tokens and role tokens
    are never split again.
    """
    tokenizer = context._execution.model.tokenizer
    held = context._branch.tokens()
    tail = _last_word(context, held)
    if not tail:
        return len(held), [tuple(tokenizer.encode(text)) for text in texts]
    before = tokenizer.vocabulary.text_of(held[len(held) - tail :]).decode("utf-8")
    joint = [tuple(tokenizer.encode(before + text)) for text in texts]
    kept = min(_common(held[len(held) - tail :], ids) for ids in joint)
    if len(held) - tail + kept == 0:  # nothing would be left to predict the first token from
        return len(held), [tuple(tokenizer.encode(text)) for text in texts]
    return len(held) - tail + kept, [ids[kept:] for ids in joint]


def _last_word(context: Context, held: Sequence[int]) -> int:
    """Number of tokens at the end that may be re-split: back to the token that begins the last word."""
    token_bytes = context._execution.model.tokenizer.vocabulary.token_bytes
    available = min(len(held) - context._open_text, RESPLIT_TOKENS)
    for n in range(1, available + 1):
        begin = token_bytes[held[len(held) - n]] or b""
        if begin[:1].isspace() or n == len(held) - context._open_text:
            try:
                b"".join(token_bytes[i] or b"" for i in held[len(held) - n :]).decode("utf-8")
            except UnicodeDecodeError:
                continue
            return n
    return 0


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


def _terminators(context: Context, end: str | None) -> tuple[int, ...]:
    execution = context._execution
    if end is not None:
        return tuple(execution.model.tokenizer.encode(end))
    if context._turns.roles:
        terminator = execution.format.terminator(context._turns.roles)
        return () if terminator is None else (terminator,)
    return ()


def _require_room(context: Context, longest: int, place: Place) -> None:
    limit, held = context._execution.model.max_context, context._branch.length
    if held + longest > limit:
        raise ContextOverflow(
            f"{context.path}: select needs {held + longest} tokens of context ({held} there and {longest} for the "
            f"longest choice), but the model holds {limit}. Shorten the prompt ({place.where}).",
            needed=held + longest,
            limit=limit,
            where=place.where,
        )


def _scores(how: How, scored: Sequence[Sequence[int]], result: ScoreResult) -> list[float]:
    if how == "greedy":
        return greedy_scores(scored, result.logprobs)
    sums = [sum(steps) for steps in result.logprobs]
    return sums if how == "sum" else [s / len(steps) for s, steps in zip(sums, result.logprobs, strict=True)]


def _unconditional(
    context: Context, task: Task, scored: tuple[tuple[int, ...], ...], place: Place, path: str
) -> tuple[Sequence[Sequence[float]], Usage]:
    """Scores after the bare turn header (in raw text, after the beginning of the sequence)."""
    execution = context._execution
    tokenizer = execution.model.tokenizer
    roles = context._turns.roles
    header = execution.format.bare_header().encode(tokenizer) if roles else []
    if not header:
        start = tokenizer.bos_id if tokenizer.bos_id is not None else min(tokenizer.vocabulary.eos_ids, default=None)
        if start is None:
            raise FurcateError(
                f"{path}: how='pmi' in raw text needs a model with a beginning- or end-of-sequence token"
            )
        header = [start]
    branch = execution.model.root()
    try:
        branch.append(header)
        request = ScoreRequest(scored, program=execution.number, label=f"{path}/unconditional")
        result: ScoreResult = dispatch(context, task, lambda: branch.score(request), place, path)
    finally:
        branch.release()
    return result.logprobs, result.usage
