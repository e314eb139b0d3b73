"""``python -m furcate``: the same as the command ``furcate``."""

from .lang.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
