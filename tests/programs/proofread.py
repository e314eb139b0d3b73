"""A loop without a known end, a scratch that is thrown away, few-shot constants ahead of it."""

from furcate import Context, program

SHOTS = [("teh", "the"), ("adn", "and")]


def fine(c: Context) -> bool:
    with c.scratch() as t:
        t.user("Is it free of mistakes?")
        return t.gen(bool)


@program
def proofread(c: Context, text: str) -> str:
    for wrong, right in SHOTS:
        c.user(wrong)
        c.assistant(right)
    c.user(text)
    better = c.gen(max_tokens=80)
    while not fine(c):
        c.user("Again.")
        better = c.gen(max_tokens=80)
    return better
