"""docs/architecture.md: every file that it lists is there, every module is listed, and its counts are the engine's."""

import re

import pytest
from test_examples import EXAMPLES, ROOT, load

import furcate as fc

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_link_of_the_page_leads_to_a_file_or_folder() -> None:
    links = re.findall(r"\]\(\.\./([^)]+)\)", PAGE)
    assert len(links) > 50
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_place_named_in_the_text_exists() -> None:
    named = set(re.findall(r"`((?:lang|runtime|kernels|examples)/[\w/.]*)`", PAGE))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_module_of_the_package_is_listed_once() -> None:
    modules = sorted(
        str(path.relative_to(ROOT))
        for pattern in ("*.py", "lang/**/*.py", "runtime/**/*.py", "kernels/**/*.py")
        for path in ROOT.glob(pattern)
    )
    assert sorted(re.findall(r"^\| \[`([\w/]+\.py)`\]", PAGE, re.MULTILINE)) == modules


@pytest.mark.slow
@pytest.mark.real
def test_the_walk_counts_what_the_engine_counts() -> None:
    shared = re.search(r"`shared\s(\d+)`", PAGE)
    cached = re.search(r"parent's (\d+) tokens", PAGE)
    assert shared is not None
    assert cached is not None
    proposal = (ROOT / "examples" / "proposal.txt").read_text(encoding="utf-8")
    with fc.using("smollm2-135m"):  # an engine of its own: nothing that ran before may be in its tree
        usage = load(EXAMPLES[0]).judge.run(proposal).usage
    assert (usage.shared, usage.cached, usage.copied_blocks) == (int(shared[1]), int(cached[1]), 1)
