"""What cannot be read is opaque, with the reason."""

from collections.abc import Callable, Iterator

from furcate import Context, program


def lines(c: Context) -> Iterator[str]:
    while True:
        yield c.gen(max_tokens=4)


class Keeper:
    context: Context


@program
def plugin(c: Context, extend: Callable[[Context], str], keeper: Keeper) -> str:
    c.user("Begin.")
    first = next(lines(c))
    keeper.context = c
    second = extend(c)
    return first + second + c.gen(max_tokens=4)
