"""Several views of one text, side by side, then a typed verdict: the branches share the text's KV.

furcate run examples/01_judge.py:judge --arg proposal=@examples/proposal.txt --show
"""

import argparse
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

import furcate as fc
from furcate import Context, program

VIEWS = ["cost", "safety", "fairness"]


class Verdict(BaseModel):
    """What the council gets to read."""

    decision: Literal["approve", "revise", "reject"]
    score: int = Field(ge=1, le=10)
    reason: str = Field(max_length=80)


def assess(b: Context, view: str) -> str:
    """One branch: a remark from one point of view."""
    b.user(f"In one short sentence, judge the {view} of this proposal.")
    return b.gen(max_tokens=24)


@program
def judge(c: Context, proposal: str) -> Verdict:
    """Judge a proposal to a town council."""
    c.system("You advise a town council. You are brief and fair.")
    c.user(f"Proposal:\n{proposal}")
    remarks = c.fork(VIEWS, assess)
    c.user("\n".join(f"{view}: {remark}" for view, remark in zip(VIEWS, remarks, strict=True)) + "\nDecide.")
    return c.gen(Verdict, max_tokens=256)


def main(model: fc.Model | str) -> None:
    """Judge the proposal that lies beside this file."""
    proposal = Path(__file__).with_name("proposal.txt").read_text(encoding="utf-8")
    with fc.using(model):
        verdict = judge(proposal)
    print(f"{verdict.decision} ({verdict.score} of 10): {verdict.reason}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    main(parser.parse_args().model)
