"""What a command line names: FILE.py:NAME or MODULE:NAME to a Program, NAME=VALUE to its arguments."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import json
import sys
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation

from .cli_errors import UsageError
from .program import Program

AnyProgram = Program[..., Any]


def find_programs(target: str) -> dict[str, AnyProgram]:
    """The programs that ``FILE.py[:NAME]`` or ``MODULE[:NAME]`` names: one, or without a NAME all of them, by name.

    Raises UsageError, with the nearest names, where there is none.
    """
    place, _, name = target.rpartition(":") if _has_name(target) else (target, "", "")
    module = _load(place)
    programs = {key: value for key, value in vars(module).items() if isinstance(value, Program)}
    if not programs:
        raise UsageError(f"there is no @program in {place}")
    if not name:
        return programs
    if name not in programs:
        raise UsageError(f"there is no @program {name!r} in {place}{suggest(name, programs)}")
    return {name: programs[name]}


def find_program(target: str) -> AnyProgram:
    """The one program that ``target`` names; raises UsageError where it names none, or several."""
    programs = find_programs(target)
    if len(programs) > 1:
        raise UsageError(f"{target} has several programs, add one of :{', :'.join(programs)}")
    return next(iter(programs.values()))


def suggest(name: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` for the nearest of ``known``, else `` (there is: a, b, c)``."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f" (did you mean {near[0]!r}?)"
    return f" (there is: {', '.join(names)})" if names else ""


def bind(program: AnyProgram, given: Sequence[str]) -> dict[str, Any]:
    """``["name=value", ...]`` as the program's keyword arguments.

    A value is plain text where the parameter is a ``str``; otherwise JSON if it parses, else plain text, converted to
    the parameter's annotation by pydantic. ``name=@file`` reads the text from a file, ``name=@@text`` starts with @.
    Raises UsageError for an unknown, missing or unfitting argument.
    """
    known = parameters(program)
    values: dict[str, Any] = {}
    for item in given:
        name, equals, text = item.partition("=")
        if not equals:
            raise UsageError(f"--arg {item}: write NAME=VALUE")
        if name not in known and _VARIADIC not in known:
            raise UsageError(f"{program.name} has no argument {name!r}{suggest(name, known)}")
        values[name] = _convert(name, _text(text), known.get(name))
    missing = [p.name for p in known.values() if p.default is p.empty and p.name not in values and p.name != _VARIADIC]
    if missing:
        wanted = " ".join(f"--arg {name}=..." for name in missing)
        raise UsageError(f"{program.name}{_signature(known)} also needs {wanted}")
    return values


def row(program: AnyProgram, value: Any) -> Any:
    """One JSON row as ``Program.map`` takes it: values converted to the annotations, a list a tuple of arguments.

    A list is the sole argument of a program that takes only one.
    """
    known = parameters(program)
    if isinstance(value, dict):
        return {name: _fit(name, item, known.get(name)) for name, item in value.items()}
    listed = list(known.values())
    if isinstance(value, list) and len(listed) > 1:
        return tuple(_fit(p.name, item, p) for p, item in zip(listed, value, strict=False)) + tuple(
            value[len(listed) :]
        )
    return _fit(listed[0].name, value, listed[0]) if listed else value


_VARIADIC = "**"


def parameters(program: AnyProgram) -> Mapping[str, inspect.Parameter]:
    """The program's own parameters, without its context; annotations evaluated where they can be."""
    try:
        hints = typing.get_type_hints(inspect.unwrap(program), include_extras=True)
    except (NameError, TypeError):  # an annotation that only a type checker sees
        hints = {}
    found = {}
    for p in inspect.signature(program).parameters.values():
        if p.kind is p.VAR_KEYWORD:
            found[_VARIADIC] = inspect.Parameter("kwargs", p.kind)
        elif p.kind is not p.VAR_POSITIONAL:
            found[p.name] = p.replace(annotation=hints.get(p.name, Any))
    return found


def _signature(known: Mapping[str, inspect.Parameter]) -> str:
    shown = (f"{p.name}" if p.default is p.empty else f"{p.name}={p.default!r:.20}" for p in known.values())
    return f"({', '.join(shown)})"


def _text(text: str) -> str:
    if text.startswith("@@"):
        return text[1:]
    if not text.startswith("@"):
        return text
    path = Path(text[1:])
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _convert(name: str, text: str, parameter: inspect.Parameter | None) -> Any:
    if parameter is not None and parameter.annotation is str:
        return text
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return _fit(name, value, parameter)


def _fit(name: str, value: Any, parameter: inspect.Parameter | None) -> Any:
    if parameter is None or parameter.annotation is Any:
        return value
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(parameter.annotation)
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation):  # a class of the user's own: as it is
        return value
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        reasons = "; ".join(e["msg"] for e in error.errors())
        raise UsageError(f"argument {name!r}: {reasons}") from error


def _has_name(target: str) -> bool:
    """Whether the last colon separates a program's name, rather than a drive letter from its path."""
    return target.rpartition(":")[2].isidentifier() and not Path(target).exists()


def _load(place: str) -> ModuleType:
    path = Path(place)
    if path.suffix == ".py" or path.is_file():
        return _load_file(path)
    sys.path.insert(0, "")  # modules of the current folder, as for python -m
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise  # the module is there; something that it imports is not
        raise UsageError(f"there is no file and no module {place!r}") from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        near = suggest(path.name, (p.name for p in path.parent.glob("*.py"))) if path.parent.is_dir() else ""
        raise UsageError(f"there is no file {path}{near}")
    # The name must clash with no real module, and stand in sys.modules: typing and pydantic look annotations up there.
    name = f"__furcate_{path.stem}__"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))  # its neighbours, as for python FILE
    spec.loader.exec_module(module)
    return module
