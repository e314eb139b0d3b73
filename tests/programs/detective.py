"""A bounded agent: a loop that the model ends, host code, a helper that is followed."""

from furcate import Context, program


def search(query: str) -> str:
    return f"Nothing is known of {query}."


def step(c: Context, number: int) -> str:
    c.user(f"Step {number}: what do you look for? Say done to stop.")
    return c.gen(max_tokens=10, stop="\n")


@program
def detective(c: Context, case: str) -> str:
    c.system("You are a detective.")
    c.user(case)
    for i in c.steps(4):
        wish = step(c, i + 1)
        if wish == "done":
            break
        c.user(c.tool(search, wish))
    else:
        c.user("Time is up.")
    return c.gen(max_tokens=50)
