"""Finding, fetching, converting and loading models and tokenizers."""

from .known import ModelInfo, list_models

__all__ = ["ModelInfo", "list_models"]
