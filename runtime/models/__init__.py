"""Finding, fetching, converting and loading models and tokenizers."""
