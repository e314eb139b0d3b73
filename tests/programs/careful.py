"""Errors: handlers as arms, and what is done at the end in any case."""

from furcate import BackendError, Context, program


@program
def careful(c: Context, question: str) -> str:
    c.user(question)
    try:
        answer = c.gen(max_tokens=20)
        if not answer:
            raise ValueError("empty")
    except BackendError:
        return "no model"
    except ValueError:
        c.user("Please answer.")
        answer = c.gen(max_tokens=20)
    else:
        c.user("Thanks.")
    finally:
        c += "\n"
    return answer
