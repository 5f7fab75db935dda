#!/usr/bin/env python3
"""Random models made by transformers at the true sizes of the 0.8B and the 27B (two layers, few vocabulary rows), written in
every weight format, scored by laoka and by transformers on the de-quantised weights.

    true_shapes.py LAOKA [NAME ...]      NAME: 0.8b-bf16, 27b-mix, ...; without names all of them"""
import json
import pathlib
import sys
import tempfile

import compare
import numpy as np
import qwen
import torch
import weights
from safetensors.torch import save_file

VOCAB = 512
SHAPES = {
    "0.8b": dict(hidden_size=1024, intermediate_size=3584, num_attention_heads=8, num_key_value_heads=2,
                 linear_num_key_heads=16, linear_num_value_heads=16, tie_word_embeddings=True),
    "27b": dict(hidden_size=5120, intermediate_size=17408, num_attention_heads=24, num_key_value_heads=4,
                linear_num_key_heads=16, linear_num_value_heads=48, tie_word_embeddings=False),
}
FORMATS = ["bf16", "f16", "f32", "fp8-block", "fp8-channel", "fp8-tensor", "nvfp4-ct", "nvfp4-modelopt", "int8", "ct4", "ct4-asym",
           "ct8", "gptq", "awq"]
CASES = [("0.8b", f) for f in FORMATS] + [("27b", "bf16"), ("27b", "fp8-block"), ("27b", "mix")]
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def config(shape):
    return {**SHAPES[shape], "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "vocab_size": VOCAB,
            "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "head_dim": 256,
            "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 4096, "attn_output_gate": True, "hidden_act": "silu", "eos_token_id": 1,
            "mtp_num_hidden_layers": 1 if shape == "0.8b" else 0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                                "mrope_section": [11, 11, 10], "mrope_interleaved": True}}


def random_model(c, seed):
    """State dict of a freshly initialised transformers model; norms, gates and MTP get random values of the trained size."""
    torch.manual_seed(seed)
    text = qwen.text_config(c)
    model = qwen.hf.Qwen3_5ForCausalLM(text)
    sd = {k: v.detach().clone() for k, v in model.state_dict().items() if k != "lm_head.weight" or not c["tie_word_embeddings"]}
    if c["mtp_num_hidden_layers"]:
        one = qwen.copy.deepcopy(text)
        one.layer_types, one.num_hidden_layers = ["full_attention"], 1
        h = c["hidden_size"]
        sd.update({"mtp.layers.0." + k: torch.randn_like(v) * 0.02 for k, v in qwen.hf.Qwen3_5DecoderLayer(one, 0).state_dict().items()})
        sd["mtp.fc.weight"] = torch.randn(h, 2 * h) * 0.02
        sd.update({f"mtp.{n}.weight": torch.zeros(h) for n in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")})
    for k, v in sd.items():
        if k.endswith("norm.weight") and not k.endswith("linear_attn.norm.weight"):
            sd[k] = torch.randn_like(v) * 0.1
        elif k.endswith("conv1d.weight"):
            sd[k] = torch.randn_like(v) * 0.3
        elif k.endswith("dt_bias"):
            sd[k] = torch.randn_like(v)
    return sd


def fp8(w):
    return w.to(torch.float8_e4m3fn)


def nvfp4(w, modelopt):
    n, k = w.shape
    amax = w.abs().max()
    g = 448 * 6 / amax
    s = fp8((w.reshape(n, -1, 16).abs().amax(-1) / 6 * g).clamp(min=2.0**-6))
    unit = w / (s.float() / g).repeat_interleave(16, 1)
    mid = (E2M1[1:] + E2M1[:-1]) / 2
    code = (torch.bucketize(unit.abs(), mid) | (unit < 0).int() * 8).to(torch.uint8)
    packed = code[:, ::2] | code[:, 1::2] << 4
    if modelopt:
        return {"weight": packed, "weight_scale": s, "weight_scale_2": (1 / g).float()}
    return {"weight_packed": packed, "weight_scale": s, "weight_global_scale": g.reshape(1).float()}


def pack(q, bits):
    """[r, c] codes -> int32 [r, c*bits/32], lowest bits first"""
    per = 32 // bits
    q = q.numpy().astype(np.uint32).reshape(q.shape[0], -1, per)
    w = np.zeros(q.shape[:2], np.uint32)
    for i in range(per):
        w |= q[:, :, i] << np.uint32(bits * i)
    return torch.from_numpy(w.view(np.int32))


def ints(w, bits, group, asym):
    """codes 0..2^bits-1 [n, k], zero points [n, k/g], scales [n, k/g]"""
    n, k = w.shape
    g = w.reshape(n, -1, group)
    if asym:
        lo, hi = g.amin(-1).clamp(max=0), g.amax(-1).clamp(min=0)
        s = ((hi - lo) / (2**bits - 1)).to(torch.float16)
        z = (-lo / s.float()).round().clamp(0, 2**bits - 1)
    else:
        s = (g.abs().amax(-1) / (2 ** (bits - 1) - 0.5)).to(torch.float16)
        z = torch.full_like(s, 2 ** (bits - 1)).float()
    q = (g / s.float()[..., None]).round() + z[..., None]
    return q.clamp(0, 2**bits - 1).reshape(n, k).int(), z.int(), s


def quantise(w, fmt):
    n, k = w.shape
    if fmt in ("bf16", "f16", "f32"):
        return {"weight": w.to({"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[fmt])}
    if fmt == "fp8-block":
        nb, kb = -(-n // 128), -(-k // 128)
        full = torch.zeros(nb * 128, kb * 128)
        full[:n, :k] = w
        s = (full.reshape(nb, 128, kb, 128).abs().amax((1, 3)) / 448).to(torch.bfloat16)
        grid = s.float().repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
        return {"weight": fp8((w / grid).clamp(-448, 448)), "weight_scale_inv": s}
    if fmt.startswith("fp8"):
        s = w.abs().amax(1, keepdim=True) / 448 if fmt == "fp8-channel" else w.abs().max() / 448
        return {"weight": fp8((w / s).clamp(-448, 448)), "weight_scale": s.to(torch.bfloat16) if s.dim() else s.float()}
    if fmt.startswith("nvfp4"):
        return nvfp4(w, fmt == "nvfp4-modelopt")
    if fmt == "int8":
        s = (w.abs().amax(1, keepdim=True) / 127).to(torch.bfloat16)
        return {"weight": (w / s.float()).round().clamp(-127, 127).to(torch.int8), "weight_scale": s}
    bits = 8 if fmt == "ct8" else 4
    q, z, s = ints(w, bits, 32 if fmt in ("ct4", "ct8") else 128, fmt in ("ct4-asym", "gptq", "awq"))
    if fmt.startswith("ct"):
        t = {"weight_packed": pack(q, bits), "weight_scale": s, "weight_shape": torch.tensor([n, k])}
        if fmt == "ct4-asym":
            t["weight_zero_point"] = pack(z.T.contiguous(), 4).T.contiguous()
        return t
    if fmt == "gptq":
        z1 = (z - 1).clamp(min=0)
        q = q if (z > 0).all() else (q - z.repeat_interleave(128, 1) + (z1 + 1).repeat_interleave(128, 1)).clamp(0, 15)
        return {"qweight": pack(q.T.reshape(k // 8, 8, n).permute(0, 2, 1).reshape(-1, 8), 4).reshape(k // 8, n),
                "scales": s.T.contiguous(), "qzeros": pack(z1.T.contiguous(), 4), "g_idx": (torch.arange(k) // 128).int()}
    order = [0, 2, 4, 6, 1, 3, 5, 7]  # nibble i of a word holds column order[i]
    inter = lambda x: pack(x.reshape(x.shape[0], -1, 8)[:, :, order].reshape(x.shape[0], -1), 4)
    return {"qweight": inter(q.T.contiguous()), "scales": s.T.contiguous(), "qzeros": inter(z.T.contiguous())}


def format_of(name, fmt):
    big = any(name.endswith(s + "_proj.weight") for s in "q k v o gate up down out".split()) or "in_proj_qkv" in name or "in_proj_z" in name
    if fmt == "mix":
        fmt = "nvfp4-ct" if ".mlp." in name else "fp8-channel"
    return fmt if big else fmt if fmt in ("f16", "f32") else "bf16"


def write(shape, fmt, folder):
    c = config(shape)
    out = {}
    for name, w in random_model(c, 7).items():
        f = format_of(name, fmt)
        if w.dim() == 2:
            out.update({name[: -len("weight")] + s: t.contiguous() for s, t in quantise(w.float(), f).items()})
        else:
            out[name] = w.to(torch.float32 if f == "f32" else torch.float16 if f == "f16" else torch.bfloat16).contiguous()
    if fmt == "gptq":
        c["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "checkpoint_format": "gptq"}
    if fmt == "awq":
        c["quantization_config"] = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
    (folder / "config.json").write_text(json.dumps(c))
    save_file(out, str(folder / "model.safetensors"), metadata={"format": "pt"})


def main(laoka, *names):
    ok = True
    ids = np.random.default_rng(3).integers(0, VOCAB, 40).tolist()
    for shape, fmt in CASES:
        name = f"{shape}-{fmt}"
        if names and name not in names:
            continue
        with tempfile.TemporaryDirectory() as d:
            folder = pathlib.Path(d)
            write(shape, fmt, folder)
            ref = qwen.Reference(*weights.dequantised(folder))
            ok &= compare.verdict(name, compare.differences(laoka, folder, ref, ids))
            del ref
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
