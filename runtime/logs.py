"""The ``furcate`` logger, and the environment variable that shows it."""

from __future__ import annotations

import logging
import os

LEVELS = ("debug", "info", "warning", "error")


def configure() -> None:
    """Send the ``furcate`` logger to standard error at the level that FURCATE_LOG names; nothing where it is not set.

    Raises ValueError for a level that does not exist.
    """
    level = os.environ.get("FURCATE_LOG", "").lower()
    if not level:
        return
    if level not in LEVELS:
        raise ValueError(f"FURCATE_LOG={level}: it must be one of {', '.join(LEVELS)}")
    logger = logging.getLogger("furcate")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(level.upper())
