"""Samples over one copy of a question, stopped early; a lambda as branch function."""

from furcate import Context, majority, program, vote


@program
def estimate(c: Context, question: str) -> int:
    c.user(question)
    return vote(c.fork(8, lambda b, i: b.gen(int, max_tokens=6, temperature=0.9), until=majority(5)))
