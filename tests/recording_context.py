"""A stand-in for a Context that runs plain Python and looks every operation up in the plan, as the interpreter does."""

from __future__ import annotations

import contextlib
import linecache
import random
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from furcate.lang.graph import Graph, Node
from furcate.lang.sites import call_sites


class Recording:
    """What a run of one program did: (kind, name or text, planned node or None)."""

    def __init__(self, graph: Graph, seed: int) -> None:
        self.graph = graph
        self.random = random.Random(seed)
        self.done: list[tuple[str, str, Node | None]] = []
        self.bodies: list[tuple[CodeType, int | None]] = []
        self.flips = 0
        self.contexts: list[RecordingContext] = []

    def run(self, fn: FunctionType) -> None:
        """Run a program's function on a recording context."""
        self.bodies.append((fn.__code__, None))
        fn(self.context())
        self.bodies.pop()

    def context(self) -> RecordingContext:
        """A fresh context."""
        self.contexts.append(RecordingContext(self))
        return self.contexts[-1]

    def note(self, kind: str, name: str, contexts: Iterable[RecordingContext], count: int = 0) -> int | None:
        """Look up and keep one operation, called by the caller of our caller; ``count``: tokens, or branches."""
        code, scope = self.bodies[-1]
        found = self.graph.find(scope, call_sites(2, code))
        node = None if found is None else self.graph.nodes[found]
        self.done.append((kind, name, node))
        for context in contexts:
            context.trace.append((kind, node, count))
        return found

    def branches(
        self, fork: int | None, fn: Callable[..., Any], contexts: Iterable[RecordingContext], *args: Any
    ) -> list[Any]:
        """Run branch bodies one after another."""
        results = []
        for i, context in enumerate(contexts):
            self.bodies.append((fn.__code__, fork))
            results.append(fn(context, *(args or (i,))))
            self.bodies.pop()
        return results

    def flip(self) -> bool:
        """A coin that the compiler cannot see; false after many throws, so that loops end."""
        self.flips += 1
        return self.flips < 60 and self.random.random() < 0.5


class RecordingContext:
    """Records its operations instead of running a model."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.trace: list[tuple[str, Node | None, int]] = []
        """Its operations: (kind, planned node, tokens generated or number of branches)."""

    def __iadd__(self, text: str) -> RecordingContext:
        self._recording.note("Text", text, [self])
        return self

    def text(self, text: str) -> None:
        self._recording.note("Text", text, [self])

    def user(self, text: str) -> None:
        self._recording.note("Text", text, [self])

    def system(self, text: str) -> None:
        self._recording.note("Text", text, [self])

    def assistant(self, text: str | None = None) -> Any:
        self._recording.note("Text", text or "", [self])
        return contextlib.nullcontext() if text is None else None

    def gen(self, type: Any = str, *, name: str = "", max_tokens: int | None = None, **_: Any) -> str:
        self._recording.note("Gen", name, [self], 3 if max_tokens is None else max_tokens)
        return self._recording.random.choice(["a", "b"])

    def select(self, choices: list[str], *, name: str = "", how: str = "sum") -> Any:
        self._recording.note("Select", name, [self], 1)
        value = self._recording.random.choice(choices)

        class Choice:
            probs = dict.fromkeys(choices, 0.5)

        Choice.value = value  # type: ignore[attr-defined]  # a stand-in
        return Choice()

    def fork(self, items: Any, fn: Any, *, until: Any = None, errors: str = "raise") -> list[Any]:
        count = items if isinstance(items, int) else len(items)
        fork = self._recording.note("Fork", "", [self], count)
        return self._recording.branches(fork, fn, [self._recording.context() for _ in range(count)])

    def split(self, n: int) -> list[RecordingContext]:
        self._recording.note("Split", "", [self], n)
        return [self._recording.context() for _ in range(n)]

    def scratch(self) -> Any:
        self._recording.note("Scratch", "", [self])
        return self._scratch()

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[RecordingContext]:
        yield self._recording.context()

    def tool(self, fn: Any, *args: Any) -> Any:
        self._recording.note("Tool", fn.__name__, [self])
        return fn(*args)

    def steps(self, n: int) -> range:
        return range(n)


def parallel(fn: Any, contexts: list[RecordingContext], *args: Any) -> list[Any]:
    """Stands in for ``furcate.parallel``: the compiler knows the function by its module and name."""
    recording = contexts[0]._recording
    fork = recording.note("Fork", "", contexts, len(contexts))
    results = []
    for context in contexts:
        recording.bodies.append((fn.__code__, fork))
        results.append(fn(context, *args))
        recording.bodies.pop()
    return results


parallel.__module__ = "furcate.recording"


def load(source: str, name: str, **names: Any) -> FunctionType:
    """The function ``name`` of a source text, which can be read back as a file can."""
    file = f"<program {abs(hash(source)):x}>.py"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    space: dict[str, Any] = {"parallel": parallel, "__name__": "generated", **names}
    exec(compile(source, file, "exec"), space)
    return space[name]
