"""The queue of waiting calls: fair between programs, ageing, ordered within one."""

from __future__ import annotations

from dataclasses import dataclass

from furcate.runtime.waiting import QUANTUM, Waiting


@dataclass(eq=False)
class Call:
    arrival: int


class Queue:
    """A Waiting with calls that are told apart by their program."""

    def __init__(self) -> None:
        self.waiting = Waiting()
        self.arrivals = 0

    def come(self, program: int, remaining: int = 1) -> Call:
        self.arrivals += 1
        call = Call(self.arrivals)
        self.waiting.add(call, self.waiting.account(program, call.arrival), remaining)
        return call

    def serve(self, program: int, num_tokens: int) -> None:
        self.waiting.charge(self.waiting.account(program, self.arrivals), num_tokens)

    def front(self) -> list[Call]:
        return self.waiting.front(100)


def test_within_a_quantum_the_oldest_program_goes_first():
    queue = Queue()
    old, new = queue.come(1), queue.come(2)
    queue.serve(1, QUANTUM - 1)
    assert queue.front() == [old, new]


def test_after_a_quantum_a_program_steps_behind_those_that_have_had_less():
    queue = Queue()
    served, other = queue.come(1), queue.come(2)
    queue.serve(1, QUANTUM)
    assert queue.front() == [other, served]


def test_newcomers_do_not_overtake_a_program_for_ever():
    """A program that has had n tokens is overtaken by those that came while the engine did its first n, not by later
    ones: each newcomer is as old as the work that the engine had done when it came."""
    queue = Queue()
    served = queue.come(1)
    queue.serve(1, 2 * QUANTUM)
    early = queue.come(2)
    assert queue.front() == [served, early]  # it came when the engine had done as much as the program has had
    queue.serve(1, QUANTUM)
    assert queue.front() == [early, served]
    for program in range(3, 20):  # others come, and are served: the engine's clock goes on
        late = queue.come(program)
        assert queue.front().index(served) < queue.front().index(late)
        queue.serve(program, QUANTUM)
    assert queue.front()[0] is early


def test_within_a_program_the_longest_remaining_path_goes_first():
    queue = Queue()
    short, long = queue.come(1, remaining=5), queue.come(1, remaining=50)
    assert queue.front() == [long, short]


def test_a_call_that_is_taken_out_is_gone_and_its_program_with_the_last():
    queue = Queue()
    first, second = queue.come(1), queue.come(1)
    account = queue.waiting.account(1, first.arrival)
    queue.waiting.remove(first, account)
    assert queue.front() == [second]
    queue.waiting.remove(second, account)
    assert len(queue.waiting) == 0
    assert queue.front() == []
