"""A riddle grown line by line: every draft is split, each copy adds a line, and only the best two go on.

The tree's shape depends on what the model thinks of its own lines, so the branches are handles, not a fork. A draft
that is dropped gives its KV back at once; the judgement of a draft happens in a scratch branch and leaves no trace.
"""

import argparse

import furcate as fc
from furcate import Context, parallel, program

LINES, WIDTH, KEEP = 3, 3, 2


def add_line(b: Context) -> str:
    """Write the next line of this draft."""
    line = b.gen(max_tokens=20, stop="\n", temperature=0.9, name="line")
    b += "\n"
    return line


def merit(b: Context) -> float:
    """How sure the model is that the draft is good."""
    with b.scratch() as s:
        s.user("Is this a good riddle so far?")
        return s.select(["yes", "no"]).probs["yes"]


@program
def riddle(c: Context, subject: str) -> str:
    """Write a riddle about a subject."""
    c.user(f"Write a riddle about {subject}, line by line, without naming it.")
    drafts = [(c, "")]
    for _ in c.steps(LINES):
        grown = [(copy, text) for draft, text in drafts for copy in draft.split(WIDTH)]
        copies = [copy for copy, _ in grown]
        lines = parallel(add_line, copies)
        merits = parallel(merit, copies)
        order = sorted(range(len(grown)), key=lambda i: merits[i], reverse=True)
        drafts = [(copies[i], grown[i][1] + lines[i] + "\n") for i in order[:KEEP]]
    return drafts[0][1]


def main(model: fc.Model | str) -> None:
    """Ask for a riddle about the wind."""
    with fc.using(model):
        print(riddle("the wind"), end="")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    main(parser.parse_args().model)
