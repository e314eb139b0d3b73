"""An async program: awaited helpers, tools that wait, a comprehension of answers."""

import asyncio

from furcate import Context, program


async def look_up(name: str) -> str:
    await asyncio.sleep(0)
    return f"{name} is a painter."


async def ask(c: Context, question: str) -> str:
    c.user(question)
    return c.gen(max_tokens=10)


@program
async def interview(c: Context, name: str) -> list[str]:
    c.system("You are " + name + ".")
    c.user(c.tool(look_up, name))
    answers = [await ask(c, question) for question in ("Where?", "When?")]
    await asyncio.sleep(0)
    answers.append(await ask(c, "Why?"))
    return answers
