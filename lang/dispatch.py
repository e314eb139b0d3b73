"""Sending an operation to the model and waiting for it; failures get their place in the program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from ..runtime.errors import EngineFailed
from ..runtime.requests import RequestCancelled, Ticket
from .chat import spell
from .errors import BackendError, Cancelled, ContextOverflow, FurcateError
from .task import Task

if TYPE_CHECKING:
    from .context import Context
    from .execution import Place

R = TypeVar("R")


def dispatch(context: Context, task: Task, send: Callable[[], Ticket[R]], place: Place, path: str) -> R:
    """Check the budget, send, suspend until the outcome. The context is busy meanwhile.

    Errors of the model or backend become BackendError with the cause, the place and the end of the context; typed
    errors of Furcate pass as they are.
    """
    context._execution.check_budget()
    context._busy = f"{path} is running on it"
    try:
        return task.wait(send(), until_ended=True)
    except RequestCancelled as error:
        raise (task.cancel_error or Cancelled(f"{path} was cancelled")) from error
    except ContextOverflow as error:
        error.where = error.where or place.where
        raise
    except EngineFailed as error:
        raise _backend_error(context, error.__cause__ or error, place, path) from (error.__cause__ or error)
    except FurcateError:
        raise
    except Exception as error:
        raise _backend_error(context, error, place, path) from error
    finally:
        context._busy = ""


@contextmanager
def assistant_turn(context: Context) -> Iterator[None]:
    """Open the assistant turn for an operation, where a chat needs it; one that fails leaves the context as it was."""
    length, turns, open_text = context._branch.length, context._turns.copy(), context._open_text
    context._open_assistant()
    try:
        yield
    except BaseException:
        if not context._closed and context._branch.length > length:
            context._branch.truncate(length)
            context._turns, context._open_text = turns, open_text
        raise


def _backend_error(context: Context, cause: BaseException, place: Place, path: str) -> BackendError:
    end = ""
    if not context._closed:
        end = spell(context._execution.model.tokenizer, context._branch.tokens()[-200:])[-200:]
    return BackendError(
        f"{path} failed at {place.where}: {type(cause).__name__}: {cause}\n  the context ends in: {end!r}",
        where=place.where,
        path=path,
    )
