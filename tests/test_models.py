"""Finding and loading models: names, files, the cache, and what is said when something is missing or damaged."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from model_files import empty_cache, logits, write_directory, write_gguf
from random_models import FAMILIES, random_loaded, random_module

from furcate.kernels.layout import StepBatch
from furcate.runtime.errors import ModelLoadError, ModelNotFound
from furcate.runtime.model_runner import ModelRunner
from furcate.runtime.models import list_models
from furcate.runtime.models.cache import publish
from furcate.runtime.models.gguf_reader import read_gguf
from furcate.runtime.models.loading import load_model


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_cache(tmp_path, monkeypatch)


def test_the_tiny_model_is_the_same_every_time_and_leaves_the_generator_alone() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first, second = load_model("test:tiny"), load_model("test:tiny")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first.weights_version == second.weights_version
    for (name, a), (_, b) in zip(first.module.named_parameters(), second.module.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    assert (first.max_context, first.tokenizer.vocabulary.size) == (4096, 260)


def test_the_tiny_model_is_neither_certain_nor_clueless() -> None:
    ids = torch.randint(0, 256, (100,), generator=torch.Generator().manual_seed(3)).tolist()
    probabilities = torch.softmax(logits(load_model("test:tiny"), ids), -1)
    entropy = -(probabilities * probabilities.clamp_min(1e-12).log2()).sum(-1)
    assert 1.0 < float(entropy.mean()) < 6.0


def test_an_unknown_name_lists_what_was_tried_and_what_is_near(cache: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"smollm2-135n.*Tried: .*directory.*Did you mean smollm2-135m"):
        load_model("smollm2-135n")


def test_the_embedded_model_without_a_cache_or_a_network_says_what_is_missing(cache: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"smollm2-135m is not in the cache .*FURCATE_OFFLINE=1"):
        load_model("smollm2-135m")
    assert not cache.exists()


def test_a_hub_id_that_is_not_cached_says_so_offline(cache: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"some/model is not in the Hugging Face cache .*FURCATE_OFFLINE=1"):
        load_model("some/model")


def test_a_missing_gguf_file_is_not_found(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"there is no file .*absent\.gguf"):
        load_model(str(tmp_path / "absent.gguf"))


def test_a_gguf_file_gives_the_logits_of_the_weights_it_was_made_from(cache: Path, tmp_path: Path) -> None:
    tiny = write_gguf(tmp_path / "tiny.gguf")
    loaded = load_model(str(tmp_path / "tiny.gguf"))
    ids = [1, 250, 3, 77, 12, 256]
    assert torch.equal(logits(loaded, ids), logits(tiny, ids))
    tokenizer = loaded.tokenizer
    assert dict(tokenizer.special_ids) == {"<|im_start|>": 256, "<|im_end|>": 257}
    assert tokenizer.vocabulary.eos_ids == {257}
    assert tokenizer.bos_id is None
    assert tokenizer.vocabulary.token_bytes[258:] == (b" t", b"th")
    assert tokenizer.render([{"role": "user", "content": "hi"}], generation_prompt=True) == "hi"


def test_a_gguf_file_is_converted_once(cache: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    first = load_model(str(tmp_path / "tiny.gguf"))
    (converted,) = (cache / "models").iterdir()
    stamp = (converted / "model.safetensors").stat().st_mtime_ns
    (tmp_path / "tiny.gguf").rename(tmp_path / "moved.gguf")
    second = load_model(str(tmp_path / "moved.gguf"))
    assert (converted / "model.safetensors").stat().st_mtime_ns == stamp
    assert first.weights_version == second.weights_version
    assert any(info.source == "GGUF file, converted" for info in list_models())


@pytest.mark.parametrize("damage", ["empty", "magic", "cut in header", "cut in tensors"])
def test_a_damaged_gguf_file_is_a_load_error_and_leaves_nothing_behind(
    cache: Path, tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "bad.gguf"
    write_gguf(path)
    whole = path.read_bytes()
    path.write_bytes(
        {
            "empty": b"",
            "magic": b"NOPE" + whole[4:],
            "cut in header": whole[:3000],
            "cut in tensors": whole[: len(whole) // 2],
        }[damage]
    )
    with pytest.raises(ModelLoadError, match=r"bad\.gguf"):
        load_model(str(path))
    assert list((cache / "models").iterdir()) == []


def test_quantised_tensors_read_as_the_gguf_library_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "q.gguf"
    weights = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("numbers", [1, 2, 3])
    quantised = gguf.quantize(weights, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("w", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("h", weights.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file, reference = read_gguf(path), gguf.GGUFReader(path)
    assert file.metadata["numbers"] == [1, 2, 3]
    for ours, theirs in zip(file.tensors, reference.tensors, strict=True):
        assert ours.shape == (8, 64)
        assert np.array_equal(ours.dequantize(), gguf.dequantize(theirs.data, theirs.tensor_type))


def test_a_directory_loads_and_its_version_follows_its_weights(cache: Path, tmp_path: Path) -> None:
    tiny = write_gguf(tmp_path / "tiny.gguf")
    load_model(str(tmp_path / "tiny.gguf"))
    (directory,) = (cache / "models").iterdir()
    (directory / "furcate.json").unlink()
    first = load_model(str(directory))
    assert torch.equal(logits(first, [5, 6, 7]), logits(tiny, [5, 6, 7]))
    weights = directory / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert load_model(str(directory)).weights_version != first.weights_version


@pytest.mark.parametrize("damage", ["no config", "no tokenizer", "config", "tokenizer", "weights"])
def test_a_damaged_directory_is_a_load_error(cache: Path, tmp_path: Path, damage: str) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    load_model(str(tmp_path / "tiny.gguf"))
    (directory,) = (cache / "models").iterdir()
    files = {"config": "config.json", "tokenizer": "tokenizer.json", "weights": "model.safetensors"}
    target = directory / files[damage.removeprefix("no ")]
    if damage.startswith("no "):
        target.unlink()
    else:
        target.write_bytes(target.read_bytes()[:100])
    with pytest.raises(ModelLoadError):
        load_model(str(directory))


def test_a_published_directory_is_whole_or_absent(tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        (directory / "half").write_text("x")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        publish(tmp_path / "models" / "m", fail)
    assert list((tmp_path / "models").iterdir()) == []


def test_the_first_of_two_publishers_wins_and_both_succeed(tmp_path: Path) -> None:
    barrier = threading.Barrier(2)

    def build(directory: Path) -> None:
        (directory / "name").write_text(threading.current_thread().name)
        barrier.wait(timeout=10)

    errors: list[BaseException] = []

    def run() -> None:
        try:
            publish(tmp_path / "m", build)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, name=name) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert (tmp_path / "m" / "name").read_text() in ("a", "b")


def test_a_cache_that_cannot_be_written_is_a_load_error(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FURCATE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(ModelLoadError, match="FURCATE_CACHE_DIR"):
        load_model(str(tmp_path / "tiny.gguf"))


def test_the_list_of_models_says_what_is_cached(cache: Path) -> None:
    infos = {info.name: info for info in list_models()}
    assert not infos["smollm2-135m"].cached
    assert infos["test:tiny"].cached
    target = cache / "models" / "smollm2-135m-v1"
    target.mkdir(parents=True)
    (target / "furcate.json").write_text(json.dumps({"source": "somewhere", "weights_version": "1"}))
    info = next(info for info in list_models() if info.name == "smollm2-135m")
    assert (info.cached, info.source, info.path) == (True, "somewhere", str(target))
    assert "cached" in str(info)


@pytest.mark.slow
@pytest.mark.real
def test_the_embedded_model_knows_the_capital_of_france() -> None:
    loaded = load_model("smollm2-135m")
    tokenizer = loaded.tokenizer
    ids = tokenizer.encode("The capital of France is")
    runner = ModelRunner(loaded, num_blocks=8)
    table = list(range(8))
    for _ in range(2):
        count = range(len(ids))
        row = [len(ids) - 1]
        out = runner.forward(StepBatch(ids, count, [0] * len(ids), [table], count, count, row))
        ids.append(int(out[0].argmax()))
    assert tokenizer.vocabulary.text_of(ids) == b"The capital of France is Paris."
    assert (loaded.max_context, tokenizer.bos_id, set(tokenizer.vocabulary.eos_ids)) == (8192, None, {2})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_of_every_architecture_loads_with_all_its_weights(
    cache: Path, tmp_path: Path, family: str
) -> None:
    directory = write_directory(tmp_path / "tiny")
    for name in ("config.json", "generation_config.json", "model.safetensors", "furcate.json"):
        (directory / name).unlink()
    module = random_module(family)
    module.save_pretrained(directory)
    loaded = load_model(str(directory))
    ids = [5, 200, 7, 31]
    assert torch.equal(logits(loaded, ids), logits(random_loaded(family), ids))
