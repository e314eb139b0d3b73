"""Constraints on generated text: one protocol, byte automata underneath."""
