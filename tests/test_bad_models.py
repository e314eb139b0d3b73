"""Model files that are damaged, incomplete or of the wrong kind: a typed error that says what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_files import empty_cache, logits, write_directory, write_gguf
from safetensors.torch import load_file, save_file

from furcate.runtime.errors import ModelLoadError, ModelNotFound, UnsupportedByBackend
from furcate.runtime.models import list_models
from furcate.runtime.models.gguf_file import convert_gguf
from furcate.runtime.models.loading import load_model


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that holds the tiny model, and a GGUF file beside it."""
    return write_directory(tmp_path_factory.mktemp("pristine") / "tiny")


@pytest.fixture
def directory(pristine: Path, tmp_path: Path) -> Path:
    """A copy of it to be damaged."""
    copy = tmp_path / "model"
    copy.mkdir()
    for path in pristine.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def cut_in_half(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def damage_header(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:8] + b"!" + path.read_bytes()[9:])


def drop_a_layer(directory: Path) -> None:
    path = directory / "model.safetensors"
    save_file({n: t for n, t in load_file(path).items() if "layers.1." not in n}, path, metadata={"format": "pt"})


def reshape(directory: Path) -> None:
    path = directory / "model.safetensors"
    weights = load_file(path)
    weights["model.norm.weight"] = torch.ones(3)
    save_file(weights, path, metadata={"format": "pt"})


def name_code_of_its_own(directory: Path) -> None:
    change_json(directory / "config.json", model_type="novel", auto_map={"AutoConfig": "code.NovelConfig"})


def add_a_token(directory: Path) -> None:
    path = directory / "tokenizer.json"
    definition = json.loads(path.read_text())
    definition["model"]["vocab"]["beyond"] = 5000
    path.write_text(json.dumps(definition))


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda d: (d / "config.json").unlink(), r"no config\.json"),
    "no tokenizer": (lambda d: (d / "tokenizer.json").unlink(), r"no tokenizer\.json"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), r"cannot be loaded.*model\.safetensors"),
    "config is no JSON": (lambda d: (d / "config.json").write_text("{"), "cannot be loaded"),
    "config is a list": (lambda d: (d / "config.json").write_text("[1]"), "cannot be loaded"),
    "config of an unknown kind": (lambda d: change_json(d / "config.json", model_type="novel"), "novel"),
    "config with code": (name_code_of_its_own, "cannot be loaded.*code"),
    "weights of other sizes": (lambda d: change_json(d / "config.json", hidden_size=128), "cannot be loaded"),
    "weights cut off": (cut_in_half, "delete the directory and load it again"),
    "weights with a bad header": (damage_header, "delete the directory"),
    "weights that lack a layer": (drop_a_layer, r"lack 9 tensors.*layers\.1\..*again"),
    "a weight of another shape": (reshape, "cannot be loaded"),
    "empty weights": (lambda d: (d / "model.safetensors").write_bytes(b""), "cannot be loaded"),
    "tokenizer is no JSON": (lambda d: (d / "tokenizer.json").write_text("{"), "tokenizer.json cannot be read"),
    "tokenizer is a list": (lambda d: (d / "tokenizer.json").write_text("[]"), "tokenizer.json cannot be read"),
    "tokenizer is no text": (lambda d: (d / "tokenizer.json").write_bytes(b"\xff\xfe"), r"tokenizer\.json"),
    "tokenizer too large": (add_a_token, "does not fit the model: 1 of its 261 tokens, 'beyond'.*260 embeddings"),
    "settings are no JSON": (lambda d: (d / "tokenizer_config.json").write_text("{"), "is not JSON"),
    "template": (lambda d: (d / "chat_template.jinja").write_text("{% if %}"), "template cannot be compiled"),
    "identity": (lambda d: (d / "furcate.json").write_text("{}"), "furcate.json is damaged.*delete"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_directory_says_what_is_wrong(directory: Path, damage: str) -> None:
    harm, message = DAMAGES[damage]
    harm(directory)
    with pytest.raises(ModelLoadError, match=f"(?s){message}"):
        load_model(str(directory))


def test_a_special_token_without_an_embedding_is_dropped(directory: Path) -> None:
    path = directory / "tokenizer.json"
    definition = json.loads(path.read_text())
    entry = {**definition["added_tokens"][0], "content": "<image>", "id": 260}
    definition["added_tokens"].append(entry)
    path.write_text(json.dumps(definition))
    tokenizer = load_model(str(directory)).tokenizer
    assert "<image>" not in tokenizer.special_ids
    assert max(tokenizer.encode("<image>")) < 260


def test_a_model_without_a_template_works_until_a_role_is_used(directory: Path) -> None:
    (directory / "chat_template.jinja").unlink()
    loaded = load_model(str(directory))
    assert loaded.tokenizer.chat_template is None
    assert logits(loaded, loaded.tokenizer.encode("text")).shape == (4, 260)
    with pytest.raises(UnsupportedByBackend, match=r"no chat template\. Append raw text"):
        loaded.tokenizer.render([{"role": "user", "content": "hi"}], generation_prompt=True)


@pytest.mark.parametrize(("options", "message"), [
    ({"device": "cuda:7"}, "'cuda:7' cannot be used"),
    ({"device": "abacus"}, "'abacus' cannot be used"),
    ({"dtype": torch.int8}, "not in torch.int8"),
])  # fmt: skip
def test_a_placement_that_is_not_there_is_a_load_error(directory: Path, options: Any, message: str) -> None:
    for name in (str(directory), "test:tiny"):
        with pytest.raises(ModelLoadError, match=message):
            load_model(name, **options)


def test_a_damaged_identity_does_not_hide_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = empty_cache(tmp_path, monkeypatch)
    for name, text in (("gguf-1", "{"), ("gguf-2", "[]"), ("gguf-3", "{}")):
        (cache / "models" / name).mkdir(parents=True)
        (cache / "models" / name / "furcate.json").write_text(text)
    assert sum(info.source == "GGUF file, converted" for info in list_models()) == 3


def test_a_hub_download_that_was_cut_off_says_so_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_cache(tmp_path, monkeypatch)
    repository = tmp_path / "hub" / "models--some--model"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    with pytest.raises((ModelLoadError, ModelNotFound), match=r"config\.json|not in the Hugging Face cache"):
        load_model("some/model")
    (snapshot / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ModelLoadError, match=r"(?s)model\.safetensors.*cut off"):
        load_model("some/model")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1), value=st.integers(0, 255), in_header=st.booleans(), cut=st.floats(0, 1) | st.none())
def test_a_gguf_file_with_a_wrong_byte_is_read_or_refused(
    pristine: Path, tmp_path: Path, place: float, value: int, in_header: bool, cut: float | None
) -> None:
    data = bytearray(pristine.with_suffix(".gguf").read_bytes())
    data[int(place * ((6000 if in_header else len(data)) - 1))] = value
    if cut is not None:
        data = data[: int(cut * len(data))]
    path, out = tmp_path / "bad.gguf", tmp_path / "out"
    path.write_bytes(data)
    out.mkdir(exist_ok=True)
    try:
        convert_gguf(path, out, source="test", version="0")
    except ModelLoadError as error:
        assert "bad.gguf cannot be read" in str(error)  # noqa: PT017 - both outcomes are right


def test_a_gguf_file_of_an_unknown_architecture_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_cache(tmp_path, monkeypatch)
    write_gguf(tmp_path / "novel.gguf", architecture="novel")
    with pytest.raises(ModelLoadError, match=r"novel\.gguf cannot be read"):
        load_model(str(tmp_path / "novel.gguf"))
