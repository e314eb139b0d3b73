"""Counter-based random numbers: a draw is a function of its key and counter, whatever was drawn before it.

Philox 4x32-10: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import torch

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox(counter: tuple[torch.Tensor | int, ...], key: tuple[int, int]) -> tuple[torch.Tensor, ...]:
    """Philox 4x32-10: four words of 32 bits, as int64 tensors, for every element of the counter.

    counter: four words, each an int or an int64 tensor; shapes broadcast and at least one is a tensor.
    key: two words.
    """
    device = next(word.device for word in counter if isinstance(word, torch.Tensor))
    c0, c1, c2, c3 = (torch.as_tensor(word, dtype=torch.int64, device=device) for word in counter)
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return c0, c1, c2, c3


def _multiply(word: torch.Tensor, by: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low word of a 32 x 32 bit product. int64 wraps beyond 2^63; masking undoes the sign of the shift."""
    product = word * by
    return (product >> 32) & _WORD, product & _WORD


def gumbel(tokens: torch.Tensor, *, seed: int, stream: int, position: int) -> torch.Tensor:
    """[n] float64 standard Gumbel noise of each token id: a function of (seed, stream, position, id) alone.

    tokens: [n] int64 ids. seed, stream: 64 bits. position: index of the token in its branch.
    The counter is (id // 4, position, low and high word of the stream), the key the seed's words, and id % 4 picks the
    word. ``argmax(logits + gumbel)`` draws from ``softmax(logits)``.
    """
    if len(tokens) == 0:
        return torch.empty(0, dtype=torch.float64, device=tokens.device)
    key = (seed & _WORD, (seed >> 32) & _WORD)
    tail = (position & _WORD, stream & _WORD, (stream >> 32) & _WORD)
    groups, index = torch.unique_consecutive(tokens // 4, return_inverse=True)
    words = torch.stack(philox((groups, *tail), key), dim=1)  # [groups, 4]
    drawn = words[index, tokens % 4].to(torch.float64)
    return -torch.log(-torch.log((drawn + 0.5) / 2.0**32))
