from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from furcate.runtime.token_log import MAX_DEPTH, TokenLog

OPS = st.lists(
    st.tuples(st.sampled_from(["append", "fork", "truncate"]), st.integers(0, 9), st.integers(0, 6)), max_size=120
)


@given(ops=OPS)
def test_logs_behave_like_lists_however_they_fork(ops: list[tuple[str, int, int]]) -> None:
    logs: list[tuple[TokenLog, list[int]]] = [(TokenLog(), [])]
    for step, (op, which, amount) in enumerate(ops):
        log, model = logs[which % len(logs)]
        if op == "append":
            log.append([step] * amount)
            model += [step] * amount
        elif op == "fork":
            logs.append((log.fork(), list(model)))
        else:
            log.truncate(max(0, len(model) - amount))
            del model[max(0, len(model) - amount) :]
    for log, model in logs:
        assert log.read() == model
        assert len(log) == len(model)


def test_a_fork_copies_no_tokens() -> None:
    log = TokenLog()
    log.append(range(1000))
    forks = [log.fork() for _ in range(50)]
    assert all(fork._segment is log._segment for fork in forks)


def test_deep_nesting_is_flattened() -> None:
    log = TokenLog()
    for i in range(10 * MAX_DEPTH):
        log.append([i])
        log = log.fork()
    log.append([-1])
    assert log._segment.depth <= MAX_DEPTH
    assert log.read() == [*range(10 * MAX_DEPTH), -1]
