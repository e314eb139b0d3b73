"""Models as the language sees them: the engine, and stand-ins for tests."""
