"""The engine: sequences, KV cache, schedule, constraints and models, in token ids."""
