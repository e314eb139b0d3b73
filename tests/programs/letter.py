"""A straight line: roles, raw text, an assistant turn in pieces, a mark."""

from furcate import Context, program

GREETING = "Dear"


@program
def letter(c: Context, name: str) -> str:
    c.system("You write letters.")
    c.user(f"Write to {name}.")
    with c.assistant():
        c += f"{GREETING} {name},\n"
        mark = c.mark()
        c.gen(max_tokens=40, stop="\n")
        c.rewind(mark)
    return c.gen(max_tokens=60, temperature=0.7, name="body")
