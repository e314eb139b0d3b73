"""Models on the Hugging Face hub, by id. The HF_* variables are honoured by the hub's own library."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import huggingface_hub
from huggingface_hub import errors

from ..errors import ModelLoadError, ModelNotFound
from .cache import offline
from .directory import load_directory
from .loaded import LoadedModel, LoadOptions

_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]


def load_hub(name: str, **options: Unpack[LoadOptions]) -> LoadedModel:
    """Load ``owner/model`` from the hub's cache or the hub. Raises ModelNotFound or ModelLoadError."""
    snapshot = _snapshot(name)
    return load_directory(name, snapshot, weights_version=f"{name}@{snapshot.name}", **options)


def _snapshot(name: str) -> Path:
    cache = huggingface_hub.constants.HF_HUB_CACHE
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=_FILES, local_files_only=offline()))
    except errors.GatedRepoError as error:
        raise ModelLoadError(
            f"{name} is gated: accept its licence on https://huggingface.co/{name} and set HF_TOKEN. ({error})"
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise ModelNotFound(
            f"the Hugging Face hub has no model {name!r} that this user may read: check the spelling; a private one "
            f"needs HF_TOKEN. ({error})"
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        why = "FURCATE_OFFLINE=1 forbids fetching it" if offline() else f"the hub cannot be reached ({error})"
        raise ModelNotFound(
            f"{name} is not in the Hugging Face cache ({cache}), and {why}. Fetch it once with a connection, or set "
            "HF_HOME to a cache that has it."
        ) from error
    except (errors.HfHubHTTPError, OSError) as error:
        raise ModelNotFound(f"{name} could not be fetched from the Hugging Face hub: {error}") from error
