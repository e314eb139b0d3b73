"""An agent with typed actions: the model picks an action, the host carries it out, until it has an answer."""

import argparse
from typing import Literal

from pydantic import BaseModel, Field

import furcate as fc
from furcate import Context, program

BERTHS = {"north": 2, "east": 0, "south": 5}
PRICES = {"north": 18, "east": 25, "south": 12}


class Free(BaseModel):
    """Ask how many berths a quay has left."""

    action: Literal["free"] = "free"
    quay: Literal["north", "east", "south"]


class Price(BaseModel):
    """Ask what some nights at a quay cost."""

    action: Literal["price"] = "price"
    quay: Literal["north", "east", "south"]
    nights: int = Field(ge=1, le=30)


class Reply(BaseModel):
    """Answer the skipper."""

    action: Literal["reply"] = "reply"
    text: str = Field(max_length=120)


def carry_out(action: Free | Price) -> str:
    """What the harbour's books say."""
    match action:
        case Free(quay=quay):
            return f"{BERTHS[quay]} berths are free at the {quay} quay."
        case Price(quay=quay, nights=nights):
            return f"{nights} nights at the {quay} quay cost {nights * PRICES[quay]} euros."


@program
def harbour(c: Context, question: str) -> str:
    """Answer a skipper's question from the harbour's books, in at most four steps."""
    c.system("You run a harbour. Look things up with the actions free and price, one at a time, then reply.")
    c.user(question)
    for _ in c.steps(4):
        action = c.gen(Free | Price | Reply, max_tokens=256, name="action")
        if isinstance(action, Reply):
            return action.text
        c.user(f"Books: {c.tool(carry_out, action)}")
    return "Please ask at the office."


def main(model: fc.Model | str) -> None:
    """Ask for a berth."""
    with fc.using(model):
        print(harbour("Is there room for one boat at the south quay, and what do three nights cost?"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    main(parser.parse_args().model)
