"""A choice with known options: arms labelled by the option."""

from typing import Literal

from furcate import Context, program

Urgency = Literal["now", "today", "later"]


@program
def triage(c: Context, message: str) -> str:
    c.user(f"How urgent is this?\n{message}")
    urgency = c.select(Urgency)
    match urgency.value:
        case "now":
            c.user("Who must be called?")
            return c.gen(max_tokens=12)
        case "today":
            c.user("Write a reminder.")
        case _:
            c.user("Write a polite deferral.")
    answer = c.gen(max_tokens=30)
    if urgency.value == "today":
        c.user("Add an hour.")
        answer += c.gen(max_tokens=5)
    return answer
