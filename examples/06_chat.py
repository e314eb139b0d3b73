"""A conversation: the history's KV stays between the turns, and a turn may ask for a typed answer."""

import argparse

import furcate as fc
from furcate import Chat

QUESTIONS = ["Why are there two high tides a day?", "Which of them is higher?"]


def main(model: fc.Model | str) -> None:
    """Two questions in words, then one that is answered by a number."""
    with fc.using(model):
        chat = Chat(system="You explain the sea to children, in one sentence.")
        for question in QUESTIONS:
            print(f"> {question}\n{chat.say(question, max_tokens=32)}")
        question = "How many hours lie between two high tides? Answer with a number."
        print(f"> {question}\n{chat.say(question, int, max_tokens=8)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    main(parser.parse_args().model)
