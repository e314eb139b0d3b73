"""If and elif on a generated Enum, a conditional expression, a constant that settles a branch."""

from enum import Enum

from furcate import Context, program

FORMAL = True


class Kind(Enum):
    BUG = "bug"
    WISH = "wish"
    OTHER = "other"


@program
def ticket(c: Context, text: str, urgent: bool = False) -> str:
    if FORMAL:
        c.system("Be formal.")
    else:
        c.system("Be casual.")
    c.user(text)
    kind = c.gen(Kind)
    if kind == Kind.BUG:
        c.user("How can it be reproduced?")
    elif kind is Kind.WISH:
        c.user("Who wants it?")
    return c.gen(max_tokens=8 if urgent else 64) if text else c.gen(max_tokens=2)
