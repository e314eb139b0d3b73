"""One ``score`` call while it runs: the token trie of its sequences, cut into chains that the engine places."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

import torch

from .errors import InvalidLogits
from .requests import ScoreRequest, ScoreResult, Ticket
from .sequence import Sequence
from .tally import Tally


class TrieNode:
    """A token of the trie. Only nodes with children need logits; only they are ever computed."""

    __slots__ = ("children", "evaluated", "logprob")

    def __init__(self) -> None:
        self.children: dict[int, TrieNode] = {}
        self.logprob = 0.0
        self.evaluated = False
        """The children's log-probabilities are known."""

    def read(self, logits: torch.Tensor) -> None:
        """Take the children's log-probabilities from ``logits`` ``[vocab]``. Raises InvalidLogits."""
        tokens = list(self.children)
        values = (logits[tokens].double() - torch.logsumexp(logits.double(), dim=-1)).tolist()
        if any(math.isnan(value) for value in values):
            raise InvalidLogits("the model's logits are not numbers where a choice is scored")
        for token, value in zip(tokens, values, strict=True):
            self.children[token].logprob = value
        self.evaluated = True


class Chain:
    """A path of inner trie nodes, computed as a temporary fork of the branch."""

    __slots__ = ("nodes", "path", "sequence", "tokens")

    def __init__(self, nodes: list[TrieNode], path: list[int]) -> None:
        self.nodes = nodes
        """[1 + path tokens] the trie's root, then the node of each token of the path."""
        self.path = path
        self.sequence: Sequence | None = None
        """Holds the chain's KV while it is being computed."""
        self.tokens: list[int] = []
        """The branch's tokens and the path's, while ``sequence`` is there."""


class Scoring:
    """State of one call. Every inner node of the trie belongs to at least one chain and is evaluated once."""

    def __init__(
        self, request: ScoreRequest, ticket: Ticket[ScoreResult], sequence: Sequence, prompt: list[int]
    ) -> None:
        self.request = request
        self.ticket = ticket
        self.sequence = sequence
        self.tokens = prompt
        self.prompt = len(prompt)
        self.tally = Tally(len(prompt))
        self.on_end: Callable[[SequenceOf[int]], None] = lambda added: None
        """Told, before the ticket resolves, which tokens the call added to its branch."""
        self.arrival = 0
        """Ordinal in the scheduler's queue."""
        self.admitted = False
        self.num_bypassed = 0
        """Times that a younger call was admitted instead, while this one was at the front of the queue."""
        self.keys: list[int] | None = None
        """Of the prompt's whole blocks, for forecasts."""
        self._root = TrieNode()
        for tokens in request.sequences:
            node = self._root
            for token in tokens:
                node = node.children.setdefault(token, TrieNode())
        self.chains = self._cut_chains()
        """Chains that are not done, in the order of the sequences."""

    @property
    def bound(self) -> int:
        """Most tokens whose KV one chain needs."""
        return self.prompt + max((len(chain.path) for chain in self.chains), default=0)

    @property
    def finished(self) -> bool:
        return not self.chains

    def wanted(self, chain: Chain) -> list[int]:
        """Positions whose logits the chain still wants, ascending."""
        return [self.prompt - 1 + i for i, node in enumerate(chain.nodes) if not node.evaluated]

    def node_at(self, chain: Chain, position: int) -> TrieNode:
        """The trie node whose children the logits after ``position`` predict."""
        return chain.nodes[position - self.prompt + 1]

    def retire_done(self) -> list[Chain]:
        """Take out and return the chains all of whose nodes are evaluated."""
        done = [chain for chain in self.chains if all(node.evaluated for node in chain.nodes)]
        if done:
            self.chains = [chain for chain in self.chains if chain not in done]
        return done

    def result(self) -> ScoreResult:
        """Log-probabilities per sequence and token, once every chain is done."""
        return ScoreResult(tuple(self._logprobs(tokens) for tokens in self.request.sequences), self.tally.usage())

    def _logprobs(self, tokens: SequenceOf[int]) -> tuple[float, ...]:
        node, values = self._root, []
        for token in tokens:
            node = node.children[token]
            values.append(node.logprob)
        return tuple(values)

    def _cut_chains(self) -> list[Chain]:
        """One chain per inner node that has no inner child."""
        chains: list[Chain] = []
        if not self._root.children:
            return chains
        stack: list[tuple[list[TrieNode], list[int]]] = [([self._root], [])]
        while stack:
            nodes, path = stack.pop()
            inner = [(token, child) for token, child in nodes[-1].children.items() if child.children]
            if not inner:
                chains.append(Chain(nodes, path))
            for token, child in reversed(inner):
                stack.append(([*nodes, child], [*path, token]))
        return chains
