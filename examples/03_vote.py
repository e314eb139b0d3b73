"""Self-consistency: nine readers of one copy of a notice; they stop as soon as five agree."""

import argparse
from typing import Literal

import furcate as fc
from furcate import Context, majority, program, vote

Day = Literal["Thursday", "Friday", "Saturday"]
NOTICE = "The library is closed on Friday. Books that are due on a closing day may come back one day later."
QUESTION = "My book is due on Friday. On which day must I bring it back?"


def read(b: Context, reader: int) -> Day:
    """One sample: a thought, then the answer that it leads to."""
    b.gen(max_tokens=32, stop="\n", temperature=0.8, name="thought")
    b += "\nAnswer: "
    return b.gen(Day)


@program
def due(c: Context, notice: str, question: str) -> Day:
    """Answer a question about a notice by a vote."""
    c.user(f"{notice}\n{question}\nThink in one line, then write the day.")
    return vote(c.fork(9, read, until=majority(5)))


def main(model: fc.Model | str) -> None:
    """Ask about the library's notice."""
    with fc.using(model):
        print(f"{QUESTION} {due(NOTICE, QUESTION)}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    main(parser.parse_args().model)
