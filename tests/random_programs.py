"""Random program sources: straight lines, arms, loops, forks, helpers, errors. Run them on a recording context."""

from __future__ import annotations

from hypothesis import strategies as st
from recording_context import Recording, load

from furcate.lang.compiler import compile_program


def run_source(source: str, seed: int = 0) -> Recording:
    """Compile and run ``main`` of a source text; ``flip()`` in it is a coin that the compiler cannot see."""
    holder: list[Recording] = []

    def flip() -> bool:
        return holder[0].flip()

    main = load(source, "main", flip=flip, parse=len)
    holder.append(Recording(compile_program(main, "main"), seed))
    holder[0].run(main)
    return holder[0]


class Writer:
    """Draws the source of a program: straight lines, arms, loops, forks, helpers."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.number = 0
        self.helpers: list[str] = []

    def fresh(self) -> str:
        self.number += 1
        return f"n{self.number}."

    def block(self, depth: int, context: str, *, top: bool = False) -> list[str]:
        lines = []
        for _ in range(self.draw(st.integers(1, 4 if top else 2))):
            lines += self.statement(depth, context)
        return lines

    def nested(self, depth: int, context: str) -> list[str]:
        return ["    " + line for line in self.block(depth - 1, context)]

    def statement(self, depth: int, context: str) -> list[str]:
        simple = ["user", "iadd", "gen", "select", "fstring", "comprehension"]
        deep = ["if", "ifmodel", "for", "while", "fork", "lambda", "helper", "scratch", "try", "parallel", "leave"]
        kind = self.draw(st.sampled_from(simple + (deep if depth else [])))
        name = self.fresh()
        match kind:
            case "user":
                return [f'{context}.user("{name}")']
            case "iadd":
                return [f'{context} += "{name}"']
            case "gen":
                return [f"{context}.gen(", f'    name="{name}",', "    max_tokens=2)"]
            case "select":
                return [f'x = {context}.select(["a", "b"], name="{name}").value']
            case "fstring":
                return [f"{context}.user(f\"{self.fresh()}{{{context}.gen(name='{name}')}}\")"]
            case "comprehension":
                return [f'x = [{context}.gen(name="{name}") for _ in range(2)]']
            case "if":
                return ["if flip():", *self.nested(depth, context), "else:", *self.nested(depth, context)]
            case "ifmodel":
                return [f'if {context}.gen(name="{name}") == "a":', *self.nested(depth, context)]
            case "for":
                jump = self.draw(st.sampled_from(["pass", "break", "continue"]))
                return ["for _ in range(2):", *self.nested(depth, context), f"    if flip(): {jump}",
                        *self.nested(depth, context)]  # fmt: skip
            case "while":
                return ["while flip():", *self.nested(depth, context)]
            case "fork" | "parallel":
                branch = f"branch_{name[:-1]}"
                inner = f"b{self.number}"
                body = [f"def {branch}({inner}, i=0):", *self.nested(depth, inner), f"    return {inner}"]
                call = f"{context}.fork(2, {branch})" if kind == "fork" else f"parallel({branch}, {context}.split(2))"
                return [*body, call]
            case "lambda":
                return [f'x = {context}.fork(2, lambda b, i: b.gen(name="{name}"))']
            case "helper":
                helper = f"helper_{name[:-1]}"
                self.helpers += [f"def {helper}(d):", *self.nested(depth, "d"), "    return d", "", ""]
                return [f"{helper}({context})", f"{helper}({context}); {helper}({context})"]
            case "scratch":
                inner = f"t{self.number}"
                return [f"with {context}.scratch() as {inner}:", *self.nested(depth, inner)]
            case "leave":
                return ["if flip():", *self.nested(depth, context), "    return None"]
            case _:
                return ["try:", *self.nested(depth, context), "    if flip(): raise ValueError",
                        "except ValueError:", *self.nested(depth, context), "finally:",
                        *self.nested(depth, context)]  # fmt: skip


@st.composite
def programs(draw: st.DrawFn) -> str:
    writer = Writer(draw)
    main = ["def main(c):", *("    " + line for line in writer.block(3, "c", top=True))]
    return "\n".join([*writer.helpers, *main, ""])
