"""Models for tests, and questions about constraints: what a user imports as ``furcate.testing``."""

from .lang.testing import RandomValid, Scripted, admits, allowed_tokens

__all__ = ["RandomValid", "Scripted", "admits", "allowed_tokens"]
