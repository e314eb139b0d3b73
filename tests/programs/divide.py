"""Recursion: followed once, then marked."""

from furcate import Context, program


def solve(b: Context, depth: int) -> str:
    b.user("Split the task, or answer.")
    if depth == 0:
        return b.gen(max_tokens=16)
    return "".join(b.fork(2, lambda d, i: solve(d, depth - 1)))


@program
def divide(c: Context, task: str, depth: int) -> str:
    c.user(task)
    return solve(c, depth)
