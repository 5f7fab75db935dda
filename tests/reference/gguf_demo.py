#!/usr/bin/env python3
"""Writes a Hugging Face model of the family (BF16, safetensors) as GGUF, arch qwen35, by the published conventions: norms + 1, A = -exp(A_log),
value heads in tiled order, MTP as the block after the last layer.   gguf_demo.py FOLDER OUT.gguf [TYPE] [--split N]"""
import json
import pathlib
import sys

import gguf
import numpy as np
import torch
from safetensors import safe_open

NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate",
         "linear_attn.conv1d": "ssm_conv1d", "linear_attn.dt_bias": "ssm_dt.bias", "linear_attn.A_log": "ssm_a",
         "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_b": "ssm_beta", "linear_attn.norm": "ssm_norm",
         "linear_attn.out_proj": "ssm_out"}
TOP = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
MTP = {"mtp.fc": "nextn.eh_proj", "mtp.pre_fc_norm_embedding": "nextn.enorm", "mtp.pre_fc_norm_hidden": "nextn.hnorm",
       "mtp.norm": "nextn.shared_head_norm"}


def tile(w, dim, hk, hv, width):
    """Value heads kh * r + j -> j * hk + kh along dim."""
    r = hv // hk
    shape = list(w.shape)
    v = w.reshape(shape[:dim] + [hk, r, width] + shape[dim + 1:]).transpose(dim, dim + 1)
    return v.reshape(shape).contiguous()


def transform(name, w, c):
    hk, hv, dk, dv = (c[k] for k in ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"))
    base = 2 * hk * dk
    part = name.split("layers.")[-1].split(".", 1)[-1] if "layers." in name else name
    if part.endswith("norm") and part != "linear_attn.norm":
        return w + 1
    if part == "linear_attn.A_log":
        w = -torch.exp(w)
    if part == "linear_attn.conv1d":
        w = w.squeeze(1)
    if part in ("linear_attn.A_log", "linear_attn.dt_bias", "linear_attn.in_proj_a", "linear_attn.in_proj_b"):
        return tile(w, 0, hk, hv, 1)
    if part in ("linear_attn.in_proj_qkv", "linear_attn.conv1d"):
        return torch.cat([w[:base], tile(w[base:], 0, hk, hv, dv)])
    if part == "linear_attn.in_proj_z":
        return tile(w, 0, hk, hv, dv)
    return tile(w, 1, hk, hv, dv) if part == "linear_attn.out_proj" else w


def gguf_name(name, layers):
    if name in TOP:
        return TOP[name] + ".weight"
    if name in MTP:
        return f"blk.{layers}.{MTP[name]}.weight"
    block, part = name.removeprefix("mtp.").removeprefix("layers.").split(".", 1)
    block = layers if name.startswith("mtp.") else int(block)
    plain = part in ("linear_attn.A_log", "linear_attn.dt_bias")
    return f"blk.{block}.{NAMES[part]}" + ("" if plain else ".weight")


def tokenizer(w, folder, vocab):
    t = json.loads((folder / "tokenizer.json").read_text())
    tokens, types = [f"[PAD{i}]" for i in range(vocab)], [5] * vocab
    for s, i in t["model"]["vocab"].items():
        tokens[i], types[i] = s, 1
    for a in t["added_tokens"]:
        tokens[a["id"]], types[a["id"]] = a["content"], 3 if a["special"] else 4
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen35")
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in t["model"]["merges"]])
    w.add_eos_token_id(tokens.index("<|im_end|>"))
    w.add_chat_template((folder / "chat_template.jinja").read_text())


def main(folder, out, kind="BF16", split=0):
    folder = pathlib.Path(folder)
    c = json.loads((folder / "config.json").read_text())
    c = c.get("text_config", c)
    L = c["num_hidden_layers"]
    w = gguf.GGUFWriter(out, "qwen35", split_max_tensors=split)
    w.add_block_count(L + c.get("mtp_num_hidden_layers", 0))
    w.add_uint32("qwen35.nextn_predict_layers", c.get("mtp_num_hidden_layers", 0))
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_dimension_count(c["head_dim"] // 4)
    w.add_array("qwen35.rope.dimension_sections", [11, 11, 10, 0])
    w.add_rope_freq_base(1e7)
    for k, v in (("conv_kernel", c["linear_conv_kernel_dim"]), ("state_size", c["linear_key_head_dim"]),
                 ("group_count", c["linear_num_key_heads"]), ("time_step_rank", c["linear_num_value_heads"]),
                 ("inner_size", c["linear_num_value_heads"] * c["linear_value_head_dim"])):
        w.add_uint32(f"qwen35.ssm.{k}", v)
    w.add_uint32("qwen35.full_attention_interval", 4)
    tokenizer(w, folder, c["vocab_size"])
    for f in sorted(folder.glob("*.safetensors")):
        with safe_open(f, "pt") as s:
            for stored in s.keys():
                name = stored.removeprefix("model.").removeprefix("language_model.").removesuffix(".weight")
                x = transform(name, s.get_tensor(stored).float(), c).numpy()
                keep = x.ndim < 2 or "conv1d" in name or name.endswith(("in_proj_a", "in_proj_b"))
                q = gguf.GGMLQuantizationType["F32" if keep else kind]
                w.add_tensor(gguf_name(name, L), x if q == 0 else gguf.quantize(x, q), raw_dtype=q)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    a = [x for x in sys.argv[1:] if not x.startswith("--")]
    n = int(a.pop()) if "--split" in sys.argv else 0
    main(*a, split=n)
