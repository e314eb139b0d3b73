"""Furcate: programs that fork. A small language for many-call model programs, and the engine that runs them."""
