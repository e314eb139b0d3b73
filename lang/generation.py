"""The ``gen`` operation: options to a request, the engine's result to a value."""

from __future__ import annotations

import codecs
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ..runtime.constraints.protocol import Constraint
from ..runtime.requests import GenRequest, GenResult, Sampling
from ..runtime.vocabulary import Vocabulary
from .dispatch import dispatch
from .errors import ContextOverflow, FurcateError, Truncated, UnboundedGeneration
from .operation import OpRecord
from .run import Event
from .task import Task
from .tool_threads import tool_threads
from .types import OutputType, regex, resolve

if TYPE_CHECKING:
    from .context import Context
    from .execution import Place

_SAMPLING = tuple(field.name for field in fields(Sampling))
_compiled: set[tuple[str, str]] = set()  # (type, vocabulary) compiled before: quick from then on
_OPTIONS = (*_SAMPLING, "max_tokens", "min_tokens", "stop", "seed", "logprobs", "name")


def generate(context: Context, wanted: Any, pattern: str | None, options: Mapping[str, Any]) -> Any:
    """Run one ``gen``; see ``Context.gen``."""
    task = context._enter("gen")
    execution = context._execution
    _check_options(options)
    if pattern is not None:
        if wanted is not str:
            raise TypeError("c.gen: give either a type or regex=, not both")
        wanted = regex(pattern)
    output: OutputType[Any] = resolve(wanted)
    name = options.get("name") or "gen"
    place = execution.place(
        "Gen", f"{name}: {output.name}", context, depth=2, task=task, attrs={"max_tokens": options.get("max_tokens")}
    )
    ordinal = context._next_ordinal()
    tokenizer = execution.model.tokenizer
    constraint = _constraint(context, task, output)
    context._open_assistant()
    if context._branch.length == 0:
        raise FurcateError(
            f"{context.path}: gen on an empty context, and the model has no beginning-of-sequence token to start from. "
            f"Append some text first ({place.where})."
        )
    path = f"{context.path}/{name}"
    request = GenRequest(
        max_tokens=_bound(context, output, options.get("max_tokens"), place),
        sampling=_sampling(options, execution.settings.temperature),
        key=execution.key(context.seed_path, ordinal, options.get("seed")),
        end_ids=tokenizer.vocabulary.eos_ids
        | (execution.format.end_ids(context._turns.roles) if context._turns.roles else frozenset()),
        min_tokens=options.get("min_tokens") or 0,
        stop=_stops(options.get("stop")),
        constraint=constraint,
        logprobs=_logprobs(options.get("logprobs", False)),
        on_tokens=_streamer(execution.sink, tokenizer.vocabulary, name, context.path) if execution.sink else None,
        hints=place.hints(),
        program=execution.number,
        label=path,
    )
    result: GenResult = dispatch(context, task, lambda: context._branch.generate(request), place, path)
    text = _text(context, result)
    context._turns.say(text)
    context._charge(result.usage, place.node)
    context._last = OpRecord(
        text, result.tokens, result.logprobs, result.finish_reason, result.usage, result.top_logprobs
    )
    execution.emit(Event("gen", name, context.path, text))
    if result.finish_reason == "length" and constraint is not None and result.complete:
        # the text may end here, but the model had not ended it: a number may lack its last digits
        message = f"max_tokens={request.max_tokens} ended the {output.name} {text!r}, which could have gone on"
        execution.emit(Event("warning", name, context.path, message))
    if not result.complete:
        end = text if len(text) <= 80 else f"...{text[-80:]}"
        raise Truncated(
            f"{path}: max_tokens={request.max_tokens} ended the {output.name} where it may not end: {end!r}. "
            f"Raise max_tokens ({place.where}).",
            partial=output.partial(text),
        )
    return output.parse(text)


def _constraint(context: Context, task: Task, output: OutputType[Any]) -> Constraint | None:
    """The type's constraint. Its first compilation takes up to seconds, so it runs beside the interpreter's thread."""
    vocabulary = context._execution.model.tokenizer.vocabulary
    key = (output.name, vocabulary.digest)
    if output.name == "str" or key in _compiled:
        return output.constraint(vocabulary)
    context._busy = f"the constraint of {output.name} is being compiled"
    try:
        constraint: Constraint | None = task.wait(tool_threads().submit(lambda: output.constraint(vocabulary)))
    finally:
        context._busy = ""
    _compiled.add(key)
    return constraint


def _check_options(options: Mapping[str, Any]) -> None:
    for option in options:
        if option not in _OPTIONS:
            near = difflib.get_close_matches(option, (*_OPTIONS, "regex"), n=1)
            hint = f"; did you mean {near[0]}=?" if near else f"; there are {', '.join(_OPTIONS)} and regex"
            raise TypeError(f"c.gen has no option {option!r}{hint}")


def _sampling(options: Mapping[str, Any], default_temperature: float | None) -> Sampling:
    given = {name: options[name] for name in _SAMPLING if options.get(name) is not None}
    if "temperature" not in given and default_temperature is not None:
        given["temperature"] = default_temperature
    for option in given.keys() - {"logit_bias"}:
        if not isinstance(given[option], int | float):
            raise TypeError(f"c.gen: {option} is a number, not {type(given[option]).__name__}")
    sampling = Sampling(**given)
    wrong = (
        ("temperature", sampling.temperature, sampling.temperature >= 0, "at least 0"),
        ("top_p", sampling.top_p, 0 < sampling.top_p <= 1, "above 0 and at most 1"),
        ("top_k", sampling.top_k, sampling.top_k >= 0, "at least 0 (0 = off)"),
        ("min_p", sampling.min_p, 0 <= sampling.min_p <= 1, "between 0 and 1"),
        ("repetition_penalty", sampling.repetition_penalty, sampling.repetition_penalty > 0, "above 0 (1 = off)"),
    )
    for option, value, fine, wanted in wrong:
        if not fine:
            raise ValueError(f"c.gen: {option}={value} must be {wanted}")
    return sampling


def _bound(context: Context, output: OutputType[Any], max_tokens: int | None, place: Place) -> int:
    """Tokens that the call may add: what was asked for, or what a finite type can need at most."""
    limit = context._execution.model.max_context
    held = context._branch.length
    if max_tokens is not None:
        if max_tokens < 0:
            raise ValueError(f"c.gen: max_tokens={max_tokens} must be at least 0")
        needed = held + max_tokens
        bound = max_tokens
    else:
        if output.max_bytes is None:
            raise UnboundedGeneration(
                f"{context.path}: gen({output.name}) has no max_tokens, and {output.name} has no finite length. "
                f"Give max_tokens=... ({place.where})."
            )
        # a token is at least one byte; one more for the end token that the last step may draw
        bound = max(1, min(output.max_bytes, limit - held))
        needed = held + 1
    if needed > limit:
        raise ContextOverflow(
            f"{context.path}: gen needs {needed} tokens of context ({held} there and up to {needed - held} new), but "
            f"the model holds {limit}. Shorten the prompt or lower max_tokens ({place.where}).",
            needed=needed,
            limit=limit,
            where=place.where,
        )
    return bound


def _stops(stop: str | Sequence[str] | None) -> tuple[bytes, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    for text in stops:
        if not isinstance(text, str) or not text:
            raise ValueError(f"c.gen: a stop string is text and not empty, not {text!r}")
    return tuple(text.encode() for text in stops)


def _logprobs(wanted: bool | int) -> int | None:
    if wanted is False or wanted is None:
        return None
    return 0 if wanted is True else int(wanted)


def _text(context: Context, result: GenResult) -> str:
    """The value's text; what a stop string left over between tokens is appended to the branch here."""
    vocabulary = context._execution.model.tokenizer.vocabulary
    if result.leftover:
        context._append_ids(context._execution.model.tokenizer.encode(result.leftover.decode("utf-8", "replace")))
    context._open_text = context._branch.length  # generated tokens are never re-split
    return (vocabulary.text_of(result.tokens) + result.leftover).decode("utf-8", "replace")


def _streamer(
    sink: Callable[[Event], None] | None, vocabulary: Vocabulary, name: str, path: str
) -> Callable[[Sequence[int]], None] | None:
    if sink is None:
        return None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def show(ids: Sequence[int]) -> None:
        text = decoder.decode(vocabulary.text_of(ids))
        if text:
            sink(Event("text", name, path, text))

    return show
