"""The package as it is shipped: its sub-packages, its marker for type checkers, what importing it costs."""

import ast
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

import furcate

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ROOMS = ("lang", "runtime", "kernels")


def python_files(room: str) -> list[Path]:
    return [path for path in (ROOT / room).rglob("*.py") if "__pycache__" not in path.parts]


def test_every_folder_with_modules_is_a_listed_package() -> None:
    folders = {path.parent.relative_to(ROOT) for room in ROOMS for path in python_files(room)}
    packages = {"furcate"} | {".".join(("furcate", *folder.parts)) for folder in folders}
    assert packages == set(PROJECT["tool"]["setuptools"]["packages"])


def test_every_package_has_an_init_file() -> None:
    for name in PROJECT["tool"]["setuptools"]["packages"]:
        assert (ROOT.joinpath(*name.split(".")[1:]) / "__init__.py").is_file(), name


def test_every_other_file_of_the_package_is_listed_as_package_data() -> None:
    data = PROJECT["tool"]["setuptools"]["package-data"]
    listed = {
        path
        for package, patterns in data.items()
        for pattern in patterns
        for path in ROOT.joinpath(*package.split(".")[1:]).glob(pattern)
    }
    files = {path for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file()}
    others = {path for path in files if path.suffix != ".py" and "__pycache__" not in path.parts}
    assert others <= listed
    assert ROOT / "py.typed" in listed


def test_no_file_is_loaded_under_two_module_names() -> None:
    # pytest imports all test modules before it runs the first test, so everything that they load is there.
    names = defaultdict(set)
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        path = Path(file).resolve() if file else ROOT
        is_example = ROOT / "examples" in path.parents  # scripts, which tests and the command line load by path
        is_foreign = "site-packages" in path.parts  # a virtual environment in the checkout
        if ROOT in path.parents and not is_example and not is_foreign and name != "__main__":
            names[path].add(getattr(module, "__name__", name))
    assert names[Path(furcate.__file__).resolve()] == {"furcate"}
    # With the root on sys.path (python -m pytest) transformers' probe for "kernels" finds our empty room. See below.
    names[ROOT / "kernels" / "__init__.py"].discard("kernels")
    assert not {path: found for path, found in names.items() if len(found) > 1}
    rooms = [ROOT / room for room in ROOMS]
    own = {name for path, found in names.items() if any(room in path.parents for room in rooms) for name in found}
    assert all(name.startswith("furcate.") for name in own), own


@pytest.mark.parametrize(("room", "forbidden"), [("kernels", {"runtime", "lang"}), ("runtime", {"lang"})])
def test_imports_point_down(room: str, forbidden: set[str]) -> None:
    for path in python_files(room):
        package = ("furcate", *path.relative_to(ROOT).parent.parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else ()
                targets = [(*base, *(node.module or "").split("."), alias.name) for alias in node.names]
            elif isinstance(node, ast.Import):
                targets = [tuple(alias.name.split(".")) for alias in node.names]
            else:
                continue
            for target in targets:
                parts = [part for part in target if part]
                assert not (parts[0] == "furcate" and len(parts) > 1 and parts[1] in forbidden), f"{path}:{node.lineno}"


@pytest.mark.parametrize("room", ROOMS)
def test_the_package_imports_itself_relatively(room: str) -> None:
    for path in python_files(room):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert all(name.split(".")[0] != "furcate" for name in names), f"{path}:{node.lineno}"


def test_the_kernels_room_cannot_be_taken_for_the_package_of_that_name() -> None:
    # transformers probes for a top-level module "kernels" and reads its version.
    tree = ast.parse((ROOT / "kernels" / "__init__.py").read_text(encoding="utf-8"))
    assert len(tree.body) == 1
    assert ast.get_docstring(tree)


@pytest.mark.parametrize("module", ["furcate", "furcate.lang.cli"])
def test_importing_loads_no_tensor_library(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout.split() == []
