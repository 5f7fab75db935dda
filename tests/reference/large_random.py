#!/usr/bin/env python3
"""A model whose weights exceed every cache, for measurements of speed: the 0.8B's shape (24 layers, BF16, 0.9 GB), random
weights, the bundled model's tokenizer and template. What it says means nothing.

    large_random.py MODELS/DEMO OUT_FOLDER"""
import json
import pathlib
import shutil
import sys

import qwen
import torch
from safetensors.torch import save_file


def main(demo, out):
    demo, out = pathlib.Path(demo), pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    vocab = json.loads((demo / "config.json").read_text())["text_config"]["vocab_size"]
    c = dict(hidden_size=1024, intermediate_size=3584, num_attention_heads=8, num_key_value_heads=2, linear_num_key_heads=16,
             linear_num_value_heads=16, tie_word_embeddings=True, architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text",
             vocab_size=vocab, num_hidden_layers=24, layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 6, head_dim=256,
             linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4, rms_norm_eps=1e-6,
             max_position_embeddings=262144, attn_output_gate=True, hidden_act="silu", eos_token_id=8128, mtp_num_hidden_layers=0,
             rope_parameters={"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10],
                              "mrope_interleaved": True})
    with torch.device("meta"):
        shapes = {k: v.shape for k, v in qwen.hf.Qwen3_5ForCausalLM(qwen.text_config(c)).state_dict().items() if k != "lm_head.weight"}
    r = torch.Generator().manual_seed(1)
    state = {}
    for name, shape in shapes.items():
        scale = 0.02 if len(shape) > 1 else 0.1
        state[name] = (torch.randn(shape, generator=r) * scale).to(torch.bfloat16)
    save_file(state, str(out / "model.safetensors"), metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(c, indent=2))
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(demo / name, out / name)
    print(f"{out}: {sum(v.numel() for v in state.values()) * 2 / 1e9:.2f} GB in {len(state)} tensors")


main(*sys.argv[1:])
