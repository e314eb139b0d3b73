"""Two forks on one trunk, over constants and over results."""

from furcate import Context, program

SIDES = ["for", "against"]


def argue(b: Context, side: str) -> str:
    b.user(f"Give one argument {side}.")
    return b.gen(max_tokens=32)


@program
def debate(c: Context, motion: str) -> str:
    c.system("You argue well.")
    c.user(f"The motion: {motion}")
    arguments = c.fork(SIDES, argue)

    def judge(b: Context, argument: str) -> float:
        b.user(f"Is this convincing?\n{argument}")
        return b.select(["yes", "no"]).probs["yes"]

    scores = c.fork(arguments, judge)
    return max(zip(scores, arguments, strict=True))[1]
