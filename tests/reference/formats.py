#!/usr/bin/env python3
"""weights.py against compressed-tensors: the same values from the same bytes, NVFP4 and packed integers."""
import sys

import numpy as np
import torch
import weights
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

rng = np.random.default_rng(1)
N, K = 64, 256


def tensor(a, dtype):
    return weights.Tensor(a.tobytes(), dtype, a.shape)


def nvfp4():
    packed = rng.integers(0, 256, (N, K // 2), np.uint8)
    scale = rng.integers(0x20, 0x60, (N, K // 16), np.uint8)
    g = np.array([2752.0], np.float32)
    ours = weights.linear({"weight_packed": tensor(packed, "U8"), "weight_scale": tensor(scale, "F8_E4M3"),
                           "weight_global_scale": tensor(g, "F32")}, {})
    s = torch.from_numpy(scale).view(torch.float8_e4m3fn).float() / torch.from_numpy(g)
    theirs = unpack_fp4_from_uint8(torch.from_numpy(packed), N, K, torch.float32) * s.repeat_interleave(16, 1)
    return np.array_equal(ours, theirs.numpy())


def ints(bits):
    words = rng.integers(-(2**31), 2**31, (N, K * bits // 32), np.int32)
    scale = rng.random((N, K // 32)).astype(np.float16)
    ours = weights.linear({"weight_packed": tensor(words, "I32"), "weight_scale": tensor(scale, "F16"),
                           "weight_shape": tensor(np.array([N, K]), "I64")}, {})
    theirs = unpack_from_int32(torch.from_numpy(words), bits, torch.Size([N, K])).float()
    return np.array_equal(ours, (theirs * torch.from_numpy(scale).float().repeat_interleave(32, 1)).numpy())


def fp8():
    codes = np.arange(256, dtype=np.uint8)
    return np.array_equal(weights.E4M3, torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy(), equal_nan=True)


if __name__ == "__main__":
    results = {"e4m3 codes": fp8(), "nvfp4": nvfp4(), "packed 4 bit": ints(4), "packed 8 bit": ints(8)}
    for name, ok in results.items():
        print(f"{name:14} {'equal to the library' if ok else 'DIFFERS'}")
    sys.exit(not all(results.values()))
