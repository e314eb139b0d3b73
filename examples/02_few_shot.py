"""Few-shot routing: the shots are computed once for all rows, and every answer comes with its probabilities."""

import argparse
from typing import Literal

import furcate as fc
from furcate import Choice, Context, program

Team = Literal["billing", "delivery", "repairs"]
SHOTS: list[tuple[str, Team]] = [
    ("I was charged twice for the same kettle.", "billing"),
    ("My parcel has been in Lyon for nine days.", "delivery"),
    ("The lid of the kettle no longer closes.", "repairs"),
]
LETTERS = [
    "Where is my order? It was due on Monday.",
    "The lamp flickers and then goes out.",
    "Please send me the invoice again.",
    "The refund has not reached my account.",
]


@program
def route(c: Context, letter: str) -> Choice[Team]:
    """Say which team a customer's letter is for."""
    c.system("You sort letters to a shop. Answer with the name of a team: billing, delivery or repairs.")
    for text, team in SHOTS:
        c.user(text)
        c.assistant(team)
    c.user(letter)
    return c.select(Team)


def main(model: fc.Model | str) -> None:
    """Route all letters in one batch."""
    with fc.using(model):
        results = route.map(LETTERS)
    for letter, choice in zip(LETTERS, results.ok, strict=True):
        print(f"{choice.value:8} {choice.probs[choice.value]:4.0%}  {letter}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    main(parser.parse_args().model)
