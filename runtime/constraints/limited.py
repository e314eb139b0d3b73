"""Pattern compilation under limits of time and memory: risky patterns go to a warm child process.

outlines-core can be neither interrupted nor limited, and a pattern of forty characters can ask for 2^20 states. The
child is started by ``-m``, never by multiprocessing, which would run the user's script a second time.
"""

from __future__ import annotations

import atexit
import io
import math
import queue
import re
import struct
import subprocess
import sys
import threading
from functools import lru_cache
from typing import IO

import numpy as np

from ..errors import InvalidRegex, UnsatisfiableConstraint
from .byte_dfa import ByteDFA, compile_pattern

TIME_LIMIT_S = 10.0
"""Seconds that a risky pattern may take."""

_RISKY_COUNT, _RISKY_LENGTH = 8, 1_000
_CLASS = re.compile(r"\[(?:\\.|[^\]\\])*\]")
_COUNT = re.compile(r"\{(\d+),?(\d*)\}")


def is_risky(pattern: str) -> bool:
    """Whether a pattern is compiled apart: long, or with counted repetitions that multiply."""
    plain = re.sub(r"\\x\{[0-9a-fA-F]+\}", "x", _CLASS.sub("c", pattern))
    counts = (int(high or low or 1) for low, high in _COUNT.findall(plain))
    return len(plain) >= _RISKY_LENGTH or math.prod(max(1, count) for count in counts) >= _RISKY_COUNT


@lru_cache(maxsize=512)
def compile_limited(pattern: str) -> ByteDFA:
    """As ``compile_pattern``, memoised. Raises InvalidRegex where the automaton outgrows the limits."""
    return _CHILD.compile(pattern) if is_risky(pattern) else compile_pattern(pattern)


class _Child:
    """The process that compiles, started at the first use and again after it had to be killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def compile(self, pattern: str) -> ByteDFA:
        """The automaton of ``pattern``, compiled there."""
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                process = self._process = subprocess.Popen(
                    [sys.executable, "-m", "furcate.runtime.constraints.compiler_child"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            assert process.stdin is not None
            assert process.stdout is not None
            answers: queue.Queue[bytes | None] = queue.Queue()
            threading.Thread(target=_receive, args=(process.stdout, answers), daemon=True).start()
            try:
                send(process.stdin, pattern.encode())
                answer = answers.get(timeout=TIME_LIMIT_S)
            except (queue.Empty, OSError):
                answer = None
            if answer is None:
                self.stop()
                raise InvalidRegex(
                    f"the pattern {pattern[:120]!r} needs more than {TIME_LIMIT_S:g} s or too much memory to compile;"
                    " lower its repetition counts"
                )
        kind, body = answer[:1], answer[1:]
        if kind == b"u":
            raise UnsatisfiableConstraint(body.decode())
        if kind == b"i":
            raise InvalidRegex(body.decode())
        with np.load(io.BytesIO(body)) as arrays:
            table, accepting = arrays["table"], arrays["accepting"]
        table.setflags(write=False)
        accepting.setflags(write=False)
        return ByteDFA(table, accepting)

    def stop(self) -> None:
        """Kill the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
            self._process = None


def send(stream: IO[bytes], message: bytes) -> None:
    """Write a message with its length before it."""
    stream.write(struct.pack("<Q", len(message)) + message)
    stream.flush()


def receive(stream: IO[bytes]) -> bytes | None:
    """Read a message that ``send`` wrote, None at the stream's end."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    (length,) = struct.unpack("<Q", head)
    body = stream.read(length)
    return body if len(body) == length else None


def _receive(stream: IO[bytes], answers: queue.Queue[bytes | None]) -> None:
    try:
        answers.put(receive(stream))
    except (OSError, ValueError):  # the process was killed, and its pipe closed
        answers.put(None)


_CHILD = _Child()
atexit.register(_CHILD.stop)
