"""Programs inside a program, in a comprehension and with settings."""

from furcate import Context, program

TOPICS = ("tea", "trees")


@program
def item(c: Context, topic: str) -> str:
    c.user(f"One line about {topic}.")
    return c.gen(max_tokens=20)


@program
def newsletter(c: Context, date: str) -> str:
    items = [item(topic) for topic in TOPICS]
    items.append(item.using(temperature=1.0)("weather"))
    c.user(f"Newsletter of {date}:\n" + "\n".join(items) + "\nWrite a headline.")
    return c.gen(max_tokens=12)
