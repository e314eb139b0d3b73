"""The ``gen`` operation: options to a request, the engine's result to a value."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..runtime.constraints.protocol import Constraint
from ..runtime.requests import GenRequest, GenResult
from ..runtime.vocabulary import Vocabulary
from .dispatch import assistant_turn, dispatch
from .errors import ContextOverflow, FurcateError, Truncated, UnboundedGeneration
from .operation import OpRecord
from .options import check_options, logprobs_of, sampling_of, stops_of
from .run import Event
from .task import Task
from .tool_threads import tool_threads
from .types import OutputType, regex, resolve

if TYPE_CHECKING:
    from .context import Context
    from .execution import Place

_compiled: WeakKeyDictionary[OutputType[Any], set[str]] = WeakKeyDictionary()
"""Vocabularies for which a type was compiled before: quick from then on."""


def generate(context: Context, wanted: Any, pattern: str | None, options: Mapping[str, Any]) -> Any:
    """Run one ``gen``; see ``Context.gen``."""
    task = context._enter("gen")
    execution = context._execution
    check_options(options, execution.model.tokenizer.vocabulary.size)
    sampling = sampling_of(options, execution.settings.temperature)
    stop, logprobs = stops_of(options.get("stop")), logprobs_of(options.get("logprobs"))
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
    path = f"{context.path}/{name}"
    with assistant_turn(context):
        if context._branch.length == 0:
            raise FurcateError(
                f"{context.path}: gen on an empty context, and the model has no beginning-of-sequence token to start "
                f"from. Append some text first ({place.where})."
            )
        request = GenRequest(
            max_tokens=_bound(context, output, options.get("max_tokens"), place),
            sampling=sampling,
            key=execution.key(context.seed_path, ordinal, options.get("seed")),
            end_ids=tokenizer.vocabulary.eos_ids
            | (execution.format.end_ids(context._turns.roles) if context._turns.roles else frozenset()),
            min_tokens=options.get("min_tokens") or 0,
            stop=stop,
            constraint=constraint,
            logprobs=logprobs,
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
    ready = _compiled.setdefault(output, set())
    if output.name == "str" or vocabulary.digest in ready:
        return output.constraint(vocabulary)
    context._busy = f"the constraint of {output.name} is being compiled"
    try:
        constraint: Constraint | None = task.wait(tool_threads().submit(lambda: output.constraint(vocabulary)))
    finally:
        context._busy = ""
    ready.add(vocabulary.digest)
    return constraint


def _bound(context: Context, output: OutputType[Any], max_tokens: int | None, place: Place) -> int:
    """Tokens that the call may add: what was asked for, or what a finite type can need at most."""
    limit = context._execution.model.max_context
    held = context._branch.length
    if max_tokens is not None:
        needed = held + max_tokens
        bound = max_tokens
    else:
        if output.max_bytes is None:
            raise UnboundedGeneration(
                f"{context.path}: gen({output.name}) has no max_tokens, and {output.name} has no finite length. "
                f"Give max_tokens=... ({place.where})."
            )
        # a token is at least one byte; one where even the empty text must be ended by the model
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
