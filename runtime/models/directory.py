"""Models in a local directory of the Hugging Face layout: config.json, safetensors, tokenizer.json."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack

import transformers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as hf_logging

from ..errors import ModelLoadError
from .assemble import assemble_model, placement
from .hf_tokenizer import read_tokenizer
from .loaded import LoadedModel, LoadOptions

logger = logging.getLogger("furcate")

IDENTITY_FILE = "furcate.json"
"""Written beside converted weights: ``{"source": ..., "weights_version": ...}``."""


def load_directory(
    name: str, directory: Path, *, weights_version: str | None = None, **options: Unpack[LoadOptions]
) -> LoadedModel:
    """Load the model in ``directory``. Raises ModelLoadError where a file is missing, damaged or of an unknown kind."""
    if not (directory / "config.json").is_file():
        raise ModelLoadError(f"{name}: {directory} has no config.json, so it is not a model directory")
    _, wanted = placement(name, options.get("dtype"), options.get("device"))
    try:
        # Without trust_remote_code=False a configuration with code of its own asks at the terminal whether to run it.
        config = AutoConfig.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        with quiet_off_terminal():
            module, report = _model_class(config).from_pretrained(
                directory,
                config=config,
                dtype=wanted,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except Exception as error:  # transformers, safetensors and torch each raise their own
        raise ModelLoadError(
            f"{name}: the model in {directory} cannot be loaded: {type(error).__name__}: {error}. If a download or a "
            "conversion was cut off, delete the directory and load it again."
        ) from error
    _check_weights(name, directory, report)
    text_config = module.config.get_text_config(decoder=True)
    size = int(module.get_output_embeddings().weight.shape[0])
    tokenizer = read_tokenizer(directory, size=size, eos_ids=_eos_ids(text_config, module))
    return assemble_model(
        name,
        module,
        tokenizer,
        weights_version=weights_version or _weights_version(directory),
        **options,
    )


def _check_weights(name: str, directory: Path, report: Mapping[str, Any]) -> None:
    """transformers draws weights that the files lack at random and goes on; here that is a ModelLoadError."""
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelLoadError(
            f"{name}: the weights in {directory} lack {len(missing)} tensors of the model, {missing[0]} among them. "
            "Fetch the safetensors files again; config.json and they must be of one model."
        )
    unexpected = sorted(report["unexpected_keys"])
    if unexpected:
        logger.info("%s: %d tensors of the files are not used, %s among them", name, len(unexpected), unexpected[0])


@contextmanager
def quiet_off_terminal() -> Iterator[None]:
    """No progress bar of transformers where standard error is not a terminal."""
    if sys.stderr.isatty() or not hf_logging.is_progress_bar_enabled():
        yield
        return
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.enable_progress_bar()


def _model_class(config: Any) -> Any:
    """The class named in the configuration, which spares the import of the auto classes' whole table."""
    for architecture in config.architectures or ():
        found = getattr(transformers, architecture, None)
        if architecture.endswith("ForCausalLM") and found is not None:
            return found
    return AutoModelForCausalLM


def _eos_ids(config: Any, module: Any) -> Iterator[int]:
    """End-of-sequence ids of the configuration and of the generation configuration; each one id or a list."""
    for holder in (config, getattr(module, "generation_config", None)):
        value = getattr(holder, "eos_token_id", None)
        yield from value if isinstance(value, list) else [] if value is None else [int(value)]


def _weights_version(directory: Path) -> str:
    """The identity that the converter wrote, else a digest over the weight files' names, sizes, times and headers."""
    identity = directory / IDENTITY_FILE
    if identity.is_file():
        try:
            return str(json.loads(identity.read_text(encoding="utf-8"))["weights_version"])
        except (ValueError, KeyError, TypeError) as error:
            raise ModelLoadError(
                f"{identity} is damaged ({type(error).__name__}: {error}): delete the directory and load the model "
                "again"
            ) from error
    digest = hashlib.blake2b((directory / "config.json").read_bytes(), digest_size=16)
    for path in sorted([*directory.glob("*.safetensors"), *directory.glob("*.bin")]):
        stat = path.stat()
        digest.update(f"{path.name}:{stat.st_size}:{stat.st_mtime_ns}".encode())
        with path.open("rb") as file:
            digest.update(file.read(1 << 16))
    return digest.hexdigest()
