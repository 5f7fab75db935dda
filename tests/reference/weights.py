"""Reads a model folder in any published Hugging Face weight layout and gives f32 weights: numpy only, written from the
formats' definitions and independent of laoka's readers. Names come out without the prefixes that checkpoints put in front."""
import json
import pathlib
import struct

import numpy as np

DTYPES = {"F32": np.float32, "F16": np.float16, "U8": np.uint8, "I8": np.int8, "I32": np.int32, "I64": np.int64}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def bf16(raw):
    return (raw.astype(np.uint32) << 16).view(np.float32)


def e4m3_table():
    t = np.zeros(256, np.float32)
    for c in range(256):
        e, m = c >> 3 & 15, c & 7
        v = m * 2.0**-9 if e == 0 else (8 + m) * 2.0 ** (e - 10)
        t[c] = np.nan if e == 15 and m == 7 else -v if c & 128 else v
    return t


E4M3 = e4m3_table()


class Tensor:
    """Raw array with its safetensors dtype; BF16 and FP8 stay codes until f32() is asked."""

    def __init__(self, raw, dtype, shape):
        self.dtype = dtype
        np_type = {"BF16": np.uint16, "F8_E4M3": np.uint8}.get(dtype) or DTYPES[dtype]
        self.a = np.frombuffer(raw, np_type).reshape(shape)

    def f32(self):
        if self.dtype == "BF16":
            return bf16(self.a)
        return E4M3[self.a] if self.dtype == "F8_E4M3" else self.a.astype(np.float32)


def read_file(path, out):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    for name, t in json.loads(data[8 : 8 + n]).items():
        if name != "__metadata__":
            b, e = t["data_offsets"]
            out[name] = Tensor(memoryview(data)[8 + n + b : 8 + n + e], t["dtype"], t["shape"])


def read_folder(folder):
    out = {}
    for f in sorted(pathlib.Path(folder).glob("*.safetensors")):
        read_file(f, out)
    return out


def strip(name):
    for p in ("model.language_model.", "language_model.model.", "language_model.", "model."):
        if name.startswith(p):
            return name[len(p) :]
    return name


def unpack(words, bits, axis_len):
    """int32 [r, w] -> codes [r, axis_len], lowest bits first"""
    per = 32 // bits
    u = words.view(np.uint32)
    cols = [(u >> np.uint32(bits * i)) & np.uint32(2**bits - 1) for i in range(per)]
    return np.stack(cols, -1).reshape(words.shape[0], -1)[:, :axis_len].astype(np.int32)


def spread(scale, n, k):
    """A grid of scales over [n, k]"""
    bn, bk = -(-n // scale.shape[0]), -(-k // scale.shape[1])
    return np.repeat(np.repeat(scale, bn, 0)[:n], bk, 1)[:, :k]


def nvfp4(packed, scale, factor):
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], -1)
    v = np.where(codes & 8, -E2M1[codes & 7], E2M1[codes & 7])
    return v * np.repeat(factor(scale), 16, 1)


def packed_ints(t, bits_of):
    n, k = (int(x) for x in t["weight_shape"].a)
    words, scale = t["weight_packed"].a, t["weight_scale"].f32()
    bits = 32 * words.shape[1] // k
    q = unpack(words, bits, k) - 2 ** (bits - 1)
    group = k // scale.shape[1]
    idx = t["weight_g_idx"].a if "weight_g_idx" in t else np.arange(k) // group
    zero = np.zeros((n, scale.shape[1]), np.int32)
    if "weight_zero_point" in t:
        zero = unpack(np.ascontiguousarray(t["weight_zero_point"].a.T), bits, n).T - 2 ** (bits - 1)
    return (q - zero[:, idx]).astype(np.float32) * scale[:, idx]


def gptq(t, plus_one):
    words, scale = t["qweight"].a, t["scales"].f32()
    k8, n = words.shape
    k = t["g_idx"].a.shape[0]
    bits = 32 * k8 // k
    q = unpack(np.ascontiguousarray(words.T), bits, k)  # [n, k]
    zero = unpack(t["qzeros"].a, bits, n) + plus_one  # [groups, n]
    idx = t["g_idx"].a
    return (q - zero[idx].T).astype(np.float32) * scale[idx].T


def awq(t):
    def order(words):
        c = unpack(words, 4, words.shape[1] * 8).reshape(words.shape[0], -1, 8)
        return c[:, :, [0, 4, 1, 5, 2, 6, 3, 7]].reshape(words.shape[0], -1)

    q, zero, scale = order(t["qweight"].a), order(t["qzeros"].a), t["scales"].f32()
    group = q.shape[0] // scale.shape[0]
    return ((q - np.repeat(zero, group, 0)).astype(np.float32) * np.repeat(scale, group, 0)).T.copy()


def linear(t, config):
    """All tensors of one linear by suffix -> f32 [n, k]"""
    if "weight_global_scale" in t:
        g = np.float32(t["weight_global_scale"].a.reshape(()))
        return nvfp4(t["weight_packed"].a, t["weight_scale"].f32(), lambda s: s / g)
    if "weight_scale_2" in t:
        g = np.float32(t["weight_scale_2"].a.reshape(()))
        return nvfp4(t["weight"].a, t["weight_scale"].f32(), lambda s: s * g)
    if "weight_packed" in t:
        return packed_ints(t, None)
    if "qweight" in t and "g_idx" in t:
        v2 = config.get("quantization_config", {}).get("checkpoint_format") == "gptq_v2"
        return gptq(t, 0 if v2 else 1)
    if "qweight" in t:
        return awq(t)
    w = t["weight"].f32()
    s = t.get("weight_scale_inv") or t.get("weight_scale")
    if s is None:
        return w
    if t["weight"].dtype == "I8":
        s8 = s.f32().reshape(w.shape[0], -1)
        return w * np.repeat(s8, w.shape[1] // s8.shape[1], 1)
    s = s.f32()
    if s.size == 1:
        return w * s.reshape(())
    if "weight_scale_inv" in t:
        return w * np.repeat(np.repeat(s, 128, 0)[: w.shape[0]], 128, 1)[:, : w.shape[1]]
    return w * s.reshape(w.shape[0], 1)


SUFFIXES = (
    "weight_scale_inv weight_scale_2 weight_scale weight_packed weight_global_scale weight_shape weight_zero_point "
    "weight_g_idx qweight qzeros scales g_idx input_global_scale input_scale weight"
).split()


def dequantised(folder):
    """(config dict, {name: f32 array}) with names such as layers.0.mlp.gate_proj.weight"""
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    groups, out = {}, {}
    for name, t in read_folder(folder).items():
        if ".visual." in name or name.startswith("visual."):
            continue
        name = strip(name)
        for s in SUFFIXES:
            if name.endswith("." + s):
                groups.setdefault(name[: -len(s) - 1], {})[s] = t
                break
        else:
            out[name] = t.f32()
    for base, t in groups.items():
        out[base + ".weight"] = linear(t, config)
    return config, out
