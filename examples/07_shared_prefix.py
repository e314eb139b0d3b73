"""What sharing saves, in exact counts: sixteen branches over one prefix of 1,024 tokens, on the real engine.

With ``test:tiny`` (random weights, one token a byte) the figures are the same on every machine.
"""

import argparse

import furcate as fc
from furcate import Context, program

TEXT = "All branches read these words. " * 33 + "x"
LETTERS = list("abcdefghijklmnop")
OWN = 12


def go_on(b: Context, letter: str) -> str:
    """One branch: a letter of its own and twelve tokens after it."""
    b += letter
    return b.gen(max_tokens=OWN, min_tokens=OWN, temperature=1.0)


@program
def spread(c: Context, text: str) -> list[str]:
    """Read the text once, then go on from it in sixteen ways."""
    c += text
    return c.fork(LETTERS, go_on)


def main(model: fc.Model | str) -> None:
    """Run the program and print what was computed, kept and copied."""
    with fc.using(model) as loaded:
        run = spread.using(seed=1).run(TEXT)
        prefix = len(loaded.tokenizer.encode(TEXT))
        peak = loaded.stats()["blocks_peak"]
    usage, branches = run.usage, len(LETTERS)
    print(f"prefix            {prefix:6} tokens, {-(-prefix // 16)} blocks of 16")
    print(f"prompts           {usage.prompt:6} tokens, of {branches} branches together")
    print(f"  cached, shared  {usage.cached + usage.shared:6}")
    print(f"  prefilled       {usage.prefilled:6}   the prefix once, and a letter a branch")
    print(f"decoded           {usage.decoded:6}   {OWN - 1} of {OWN} a branch: nothing asks what follows the last")
    print(f"computed in all   {usage.computed:6}   of {usage.prompt + branches * (OWN - 1)} without sharing")
    print(f"blocks in use     {peak:6}   at most: the prefix once, and one a branch")
    print(f"blocks copied     {usage.copied_blocks:6}   the prefix ends at the edge of a block")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="test:tiny")
    main(parser.parse_args().model)
