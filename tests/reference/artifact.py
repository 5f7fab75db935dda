#!/usr/bin/env python3
"""Small files in every weight format, made by the publishers' own libraries, with the values those libraries read from them:
OUT/formats/ (a Hugging Face folder), OUT/formats.f32.safetensors, OUT/all.gguf, OUT/gguf.f32.safetensors and OUT/encode.safetensors
(what compressed-tensors makes of given rows). GPTQ and AWQ bytes are built from their specification: no library for them runs on a CPU."""
import json
import pathlib
import sys

import gguf
import numpy as np
import torch
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.compressors.naive_quantized.base import NaiveQuantizationCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import save_file

torch.manual_seed(7)
rng = np.random.default_rng(7)
N, K = 16, 128
CONFIG = {"model_type": "qwen3_5_text", "hidden_size": K, "intermediate_size": N, "num_hidden_layers": 16, "vocab_size": 64,
          "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 256, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
          "tie_word_embeddings": True}


def args(**kw):
    return QuantizationArgs(**kw)


def scheme(a):
    return QuantizationScheme(targets=["Linear"], weights=a)


def group_minmax(x, g):
    v = x.unflatten(-1, (-1, g))
    return v.amin(-1), v.amax(-1)


def ct_nvfp4(x):
    a = args(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True, scale_dtype=torch.float8_e4m3fn)
    g = generate_gparam(x.min(), x.max())
    s, _ = calculate_qparams(*group_minmax(x, 16), a, global_scale=g)
    c = NVFP4PackedCompressor.compress({"weight": x, "weight_scale": s, "weight_global_scale": g}, scheme(a))
    codes = unpack_fp4_from_uint8(c["weight_packed"], *x.shape, dtype=torch.float32)  # decompress() would round to BF16
    return c, dequantize(codes, c["weight_scale"].float(), args=a, global_scale=g, dtype=torch.float32)


def ct_channel(x, kind):
    a = args(num_bits=8, type=kind, strategy="channel", symmetric=True)
    s, _ = calculate_qparams(x.amin(-1, keepdim=True), x.amax(-1, keepdim=True), a)
    c = NaiveQuantizationCompressor.compress({"weight": x, "weight_scale": s}, scheme(a))
    return c, NaiveQuantizationCompressor.decompress(c, scheme(a))["weight"].float()


def ct_packed(x, bits, g, symmetric, gidx=None):
    a = args(num_bits=bits, type="int", strategy="group", group_size=g, symmetric=symmetric)
    s, z = calculate_qparams(*group_minmax(x, g), a)
    d = {"weight": x, "weight_scale": s}
    if not symmetric:
        d["weight_zero_point"] = z.to(torch.int8)
    c = PackedQuantizationCompressor.compress(d, scheme(a))
    if gidx is not None:  # older files' column order; today's library no longer reads it: (q * scale of the column's group)
        q = unpack_from_int32(c["weight_packed"], bits, x.shape).float()
        return {**c, "weight_g_idx": gidx}, q * s[:, gidx.long()]
    return c, PackedQuantizationCompressor.decompress(c, scheme(a))["weight"].float()


def pack_words(codes, order):
    """codes [..., per] -> int32 [...]; order[j]: the field of element j."""
    bits = 32 // len(order)
    w = np.zeros(codes.shape[:-1], np.uint32)
    for j, f in enumerate(order):
        w |= codes[..., j].astype(np.uint32) << np.uint32(bits * f)
    return torch.from_numpy(w.view(np.int32).copy())


def gptq(bits, act_order, g=32):
    per, top = 32 // bits, 2**bits
    u = rng.integers(0, top, (K, N))
    z = rng.integers(1, top, (K // g, N))
    s = torch.from_numpy(rng.random((K // g, N)).astype(np.float16))
    idx = np.arange(K) // g
    if act_order:
        idx = rng.permutation(idx)
    w = (torch.from_numpy(u - z[idx]).float() * s.float()[idx]).T.contiguous()
    plain = list(range(per))
    return {"qweight": pack_words(u.reshape(K // per, per, N).transpose(0, 2, 1), plain), "scales": s,
            "qzeros": pack_words((z - 1).reshape(K // g, N // per, per), plain), "g_idx": torch.from_numpy(idx.astype(np.int32))}, w


def awq(g=32):
    order = [0, 4, 1, 5, 2, 6, 3, 7]
    u, z = rng.integers(0, 16, (K, N)), rng.integers(0, 16, (K // g, N))
    s = torch.from_numpy(rng.random((K // g, N)).astype(np.float16))
    w = (torch.from_numpy(u - np.repeat(z, g, 0)).float() * s.float().repeat_interleave(g, 0)).T.contiguous()
    return {"qweight": pack_words(u.reshape(K, N // 8, 8), order), "scales": s,
            "qzeros": pack_words(z.reshape(K // g, N // 8, 8), order)}, w


def fp8_blocks(x):
    big = torch.zeros(N, K)
    s = torch.tensor([[0.0123]]).bfloat16()
    q = (x / s.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
    big[:] = q.float() * s.float()
    return {"weight": q, "weight_scale_inv": s}, big


def modelopt(x):
    c, _ = ct_nvfp4(x)
    s2 = torch.tensor(1.0) / c["weight_global_scale"].reshape(())
    full = torch.stack([c["weight_packed"] & 15, c["weight_packed"] >> 4], -1).reshape(N, K).long()
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    w = table[full] * (c["weight_scale"].float() * s2).repeat_interleave(16, 1)
    return {"weight": c["weight_packed"], "weight_scale": c["weight_scale"], "weight_scale_2": s2, "input_scale": torch.tensor(1.0)}, w


def hf(out):
    x = torch.randn(N, K) * 0.05
    act = torch.from_numpy(rng.permutation(np.arange(K) // 32).astype(np.int32))
    cases = {"f32": ({"weight": x}, x), "bf16": ({"weight": x.bfloat16()}, x.bfloat16().float()),
             "f16": ({"weight": x.half()}, x.half().float()), "nvfp4": ct_nvfp4(x), "modelopt": modelopt(x), "blocks": fp8_blocks(x),
             "channel": ct_channel(x, "float"), "int8": ct_channel(x, "int"), "w4": ct_packed(x, 4, 32, True),
             "w4z": ct_packed(x, 4, 32, False), "w4g": ct_packed(x, 4, 32, True, act), "w8": ct_packed(x, 8, 32, True),
             "gptq": gptq(4, False), "gptqg": gptq(4, True), "gptq8": gptq(8, False), "awq": awq()}
    tensors, want = {"model.language_model.embed_tokens.weight": torch.randn(64, K).bfloat16()}, {}
    for i, (parts, w) in enumerate(cases.values()):
        for part, v in parts.items():
            tensors[f"model.language_model.layers.{i}.mlp.up_proj.{part}"] = v.contiguous()
        want[f"layers.{i}.mlp.up_proj"] = w.float().contiguous()
    (out / "formats").mkdir(parents=True, exist_ok=True)
    (out / "formats/config.json").write_text(json.dumps(CONFIG))
    save_file(tensors, out / "formats/model.safetensors", {"format": "pt"})
    save_file(want, out / "formats.f32.safetensors")


TYPES = ("F32 F16 BF16 Q8_0 Q6_K Q5_K Q4_K Q3_K Q2_K Q4_0 Q4_1 Q5_0 Q5_1 IQ4_NL IQ4_XS IQ3_S IQ3_XXS IQ2_S IQ2_XS IQ2_XXS "
         "MXFP4").split()


def random_blocks(kind, rows, k):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (rows * k // block, size), np.uint8)
    while True:
        with np.errstate(all="ignore"):
            v = gguf.dequantize(raw, kind)
        bad = ~np.isfinite(v.reshape(len(raw), -1)).all(1) | (np.abs(v).reshape(len(raw), -1).max(1) > 1e6)
        if not bad.any():
            return raw.reshape(rows, -1), v.reshape(rows, k).astype(np.float32)
        raw[bad] = rng.integers(0, 256, (bad.sum(), size), np.uint8)


def byte_chars():
    """The printable stand-in of each byte in a byte-level vocabulary."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = iter(range(256, 512))
    return [chr(b if b in own else next(rest)) for b in range(256)]


def gguf_file(out):
    w = gguf.GGUFWriter(out / "all.gguf", "qwen35")
    w.add_block_count(len(TYPES))
    w.add_embedding_length(512)
    w.add_feed_forward_length(2)
    w.add_head_count(2)
    w.add_head_count_kv(1)
    w.add_uint32("qwen35.ssm.group_count", 1)
    w.add_uint32("qwen35.ssm.time_step_rank", 2)
    w.add_array("qwen35.rope.dimension_sections", [11, 11, 10, 0])
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen35")
    w.add_token_list(byte_chars() + ["ab", "<|endoftext|>", "<|im_end|>", "<think>", "[PAD260]"])
    w.add_token_types([1] * 257 + [3, 3, 4, 5])
    w.add_token_merges(["a b"])
    w.add_eos_token_id(258)
    w.add_chat_template("{{ messages }}")
    kind = gguf.GGMLQuantizationType.IQ2_XXS
    w.add_tensor("token_embd.weight", random_blocks(kind, 261, 512)[0], raw_dtype=kind)
    want = {}
    for i, name in enumerate(TYPES):
        kind = gguf.GGMLQuantizationType[name]
        if name in ("F32", "F16"):
            raw = rng.standard_normal((2, 512)).astype(np.float32 if name == "F32" else np.float16)
            v = raw.astype(np.float32)
            w.add_tensor(f"blk.{i}.ffn_up.weight", raw)
        else:
            raw, v = random_blocks(kind, 2, 512)
            w.add_tensor(f"blk.{i}.ffn_up.weight", raw, raw_dtype=kind)
        want[f"layers.{i}.mlp.up_proj"] = torch.from_numpy(v.copy())
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    save_file(want, out / "gguf.f32.safetensors")


def encode(out):
    x = (torch.randn(8, 64) * torch.tensor([1, 0.01, 30, 1e-6, 1, 1, 1, 1])[:, None]).bfloat16().float()
    x[5, :16] = 0
    x[6] = (torch.arange(64) % 25 - 12) * 0.25  # ties of e2m1
    x[7] = 0
    nv, nvw = ct_nvfp4(x)
    ch, chw = ct_channel(x, "float")
    save_file({"x": x, "nvfp4.packed": nv["weight_packed"], "nvfp4.scale": nv["weight_scale"].view(torch.uint8),
               "nvfp4.global": nv["weight_global_scale"], "nvfp4.value": nvw, "fp8.codes": ch["weight"].view(torch.uint8),
               "fp8.scale": ch["weight_scale"].float(), "fp8.value": chw}, out / "encode.safetensors")


if __name__ == "__main__":
    to = pathlib.Path(sys.argv[1])
    to.mkdir(parents=True, exist_ok=True)
    hf(to)
    gguf_file(to)
    encode(to)
