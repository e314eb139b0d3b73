"""Every kernel compiled for every target, held to the ceilings that docs/kernels.md writes down."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import triton

from furcate.kernels.triton_compile import TARGETS, Resources, Variant, compile_variant, variants
from furcate.kernels.triton_tiles import UnsupportedByKernel

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "kernels.md").read_text(encoding="utf-8")
MEASURED_WITH = "3.9."
LONG = re.compile(r" (64|80|96) x|merge_partials (64|256|512)")
"""Variants between or beside others, left to the slow tests."""


def ceilings() -> dict[tuple[str, str], Resources | None]:
    """The table's rows: kernel and target to registers, shared bytes, spilled bytes and scalars; None = cannot be."""
    found: dict[tuple[str, str], Resources | None] = {}
    names: list[str] = []
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == "kernel":
            names = cells[1:]
        elif names and len(cells) == len(names) + 1 and not cells[0].startswith("---"):
            for target, cell in zip(names, cells[1:], strict=True):
                figures = [int(figure) for figure in re.findall(r"\d+", cell)]
                found[cells[0], target] = Resources(figures[0], figures[1], 0, figures[2]) if figures else None
    return found


CEILINGS = ceilings()


def test_the_table_has_every_kernel_and_target_and_no_other() -> None:
    assert set(CEILINGS) == {(variant.name, target) for variant in variants() for target in TARGETS}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "variant",
    [pytest.param(v, marks=[pytest.mark.slow] * bool(LONG.search(v.name))) for v in variants()],
    ids=lambda variant: variant.name,
)
def test_a_kernel_stays_under_its_ceilings_and_spills_nothing(variant: Variant, target: str) -> None:
    if not triton.__version__.startswith(MEASURED_WITH):
        pytest.skip(f"the ceilings are those of triton {MEASURED_WITH}, this is {triton.__version__}")
    ceiling = CEILINGS[variant.name, target]
    if ceiling is None:
        with pytest.raises(UnsupportedByKernel, match=target):
            compile_variant(variant, target)
        return
    taken = compile_variant(variant, target)
    assert taken.spilled_bytes == 0
    assert taken.registers <= ceiling.registers
    assert taken.shared_bytes <= ceiling.shared_bytes
    assert taken.spilled_scalars <= ceiling.spilled_scalars
