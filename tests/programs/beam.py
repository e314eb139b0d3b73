"""Handles: a tree whose shape depends on results, two levels deep."""

from furcate import Context, parallel, program


def extend(b: Context, tokens: int) -> str:
    return b.gen(max_tokens=16, temperature=1.0)


def rate(b: Context) -> float:
    with b.scratch() as t:
        t.user("Good?")
        return t.select(["yes", "no"]).probs["yes"]


@program
def beam(c: Context, opening: str) -> str:
    c.user(opening)
    left, right = c.split(2)
    left.user("Make it short.")
    right.user("Make it long.")
    kids = [kid for node in (left, right) for kid in node.split(2)]
    parallel(extend, kids, 16)
    scores = parallel(rate, kids)
    best = max(range(len(kids)), key=lambda i: scores[i])
    return kids[best].gen(max_tokens=32)
