"""Writing and copying KV in Triton's interpreter, and the whole backend against the torch backend."""

from __future__ import annotations

import pytest
import torch

from furcate.kernels.interface import KVShape
from furcate.kernels.layout import BlockCopy, StepBatch
from furcate.kernels.torch_backend import TorchBackend
from furcate.kernels.triton_backend import TritonBackend
from furcate.kernels.triton_copy_blocks import copy_waves
from furcate.kernels.triton_store_kv import reference_store, store_kv_kernel
from furcate.kernels.triton_tiles import UnsupportedByKernel, attention_tiles, check_kv_dtype

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        (torch.float32, 1.0),
        (torch.float16, 1.0),
        (torch.bfloat16, 1.0),
        (torch.float8_e4m3fn, 0.5),
        (torch.float8_e5m2, 2.0),
    ],
)
def test_rows_go_to_their_slots_and_padding_goes_nowhere(dtype: torch.dtype, scale: float) -> None:
    generator = torch.Generator().manual_seed(1)
    # Views of a packed projection, as a model hands them over: strides are not those of a dense tensor.
    packed = torch.randn(3, 5, 40, generator=generator).transpose(0, 1) * 50
    if dtype.itemsize == 2:
        packed = packed.to(dtype)
    if dtype.itemsize == 1:
        packed = packed.to(dtype).float() * scale  # the interpreter loses the carry when it rounds to fp8
        packed[4, 0, 0], packed[4, 1, 20] = 1e6, -1e6  # beyond what the pool holds
    key, value = packed[:, :, :20], packed[:, :, 20:]
    write_rows = torch.tensor([4, 0, 4, 2, 1], dtype=torch.int32)
    write_slots = torch.tensor([17, 0, 63, -1, 40], dtype=torch.int32)
    pools = [torch.zeros(4, 16, 3, 20).to(dtype) for _ in range(4)]
    fp8_max = torch.finfo(dtype).max if dtype.itemsize == 1 else 0.0
    store_kv_kernel[(5,)](
        *(key, value, pools[0], pools[1], write_rows, write_slots),
        *(key.stride(0), key.stride(1), value.stride(0), value.stride(1), 1.0 / scale, 1.0 / scale),
        **{"DIM": 20, "DIM_PAD": 32, "HEADS": 3, "HEADS_PAD": 4, "FP8_MAX": fp8_max},
    )
    for got, want, rows in ((pools[0], pools[2], key), (pools[1], pools[3], value)):
        reference_store(want, rows, write_rows, write_slots, scale)
        assert torch.equal(got.float(), want.float())
        assert torch.isfinite(got.float()).all()


def test_copies_run_in_order_for_every_layer_and_keep_nan() -> None:
    shape = KVShape(2, 6, [1, 3], [64, 80], torch.bfloat16, CPU)
    ours, reference = TritonBackend(shape), TorchBackend(shape)
    generator = torch.Generator().manual_seed(3)
    for layer in range(2):
        for mine, theirs in zip(ours.kv_pool(layer), reference.kv_pool(layer), strict=True):
            mine.copy_(torch.randn(mine.shape, generator=generator))
            mine[0, 3] = torch.nan
            theirs.copy_(mine)
    copies = [BlockCopy(0, 1, 5), BlockCopy(1, 2, 4), BlockCopy(3, 0, 16), BlockCopy(4, 5, 1)]
    assert [len(wave) for wave in copy_waves(copies)] == [2, 2]
    ours.copy_blocks(copies)
    reference.copy_blocks(copies)
    for layer in range(2):
        for mine, theirs in zip(ours.kv_pool(layer), reference.kv_pool(layer), strict=True):
            assert torch.equal(mine.view(torch.int16), theirs.view(torch.int16))


def test_a_prefill_a_fork_and_a_decode_agree_with_the_torch_backend() -> None:
    shape = KVShape(2, 12, [2, 1], [64, 64], torch.float32, CPU)
    backends = [TritonBackend(shape), TorchBackend(shape)]
    generator = torch.Generator().manual_seed(4)
    slots = [16 * block + offset for block in (7, 2, 5) for offset in range(16)][:35]
    prefill = StepBatch([0] * 35, list(range(35)), [0] * 35, [[7, 2, 5]], list(range(35)), slots, [34])
    decode = StepBatch(
        [0, 0], [35, 35], [0, 1], [[7, 2, 5], [7, 2, 9]], [0, 1], [5 * 16 + 3, 9 * 16 + 3], [0, 1], [BlockCopy(5, 9, 3)]
    )
    for batch in (prefill, decode):
        plans = [backend.plan(batch) for backend in backends]
        for backend in backends:
            backend.copy_blocks(batch.copies)
        for layer, kv_heads in enumerate(shape.kv_heads):
            key, value = torch.randn(2, batch.num_rows, kv_heads, 64, generator=generator)
            query = torch.randn(batch.num_rows, 2, 64, generator=generator)
            outs = []
            for backend, plan in zip(backends, plans, strict=True):
                backend.write_kv(layer, key, value, plan)
                window = 8 if layer else None
                outs.append(backend.attend(layer, query, plan, scale=0.125, sliding_window=window))
            assert (outs[0] - outs[1]).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_an_fp8_pool_attends_within_its_precision(dtype: torch.dtype) -> None:
    scales = (0.05, 0.02)
    ours = TritonBackend(KVShape(1, 3, [1], [64], dtype, CPU), kv_scales=scales)
    generator = torch.Generator().manual_seed(6)
    key, value = torch.randn(2, 33, 1, 64, generator=generator).bfloat16()
    query = torch.randn(1, 4, 64, generator=generator).bfloat16()
    write = StepBatch(
        [0] * 33, list(range(33)), [0] * 33, [[2, 0, 1]], list(range(33)), [*range(32, 48), *range(17)], []
    )
    ours.write_kv(0, key, value, ours.plan(write))
    got = ours.attend(0, query, ours.plan(StepBatch([0], [32], [0], [[2, 0, 1]], [], [], [])), scale=0.125)
    stored = [pool.view(48, 64)[[*range(32, 48), *range(17)]].double() for pool in ours.kv_pool(0)]
    weights = torch.softmax(query[0].double() @ (stored[0] * scales[0]).T * 0.125, 1)
    assert (got[0].double() - weights @ (stored[1] * scales[1])).abs().max() < 2e-2


def test_what_a_target_cannot_run_is_a_typed_error() -> None:
    with pytest.raises(UnsupportedByKernel, match="head size 48"):
        attention_tiles(48, deterministic=False)
    with pytest.raises(UnsupportedByKernel, match="head size 48"):
        TritonBackend(KVShape(1, 2, [1], [48], torch.float32, CPU))
    with pytest.raises(UnsupportedByKernel, match="sm_80 has no e4m3"):
        check_kv_dtype(torch.float8_e4m3fn, "sm_80")
    with pytest.raises(UnsupportedByKernel, match="fnuz"):
        check_kv_dtype(torch.float8_e4m3fn, "gfx942")
    with pytest.raises(UnsupportedByKernel, match="int8"):
        check_kv_dtype(torch.int8, "sm_90")
    check_kv_dtype(torch.float8_e5m2, "sm_80")
    check_kv_dtype(torch.float8_e4m3fnuz, "gfx942")
