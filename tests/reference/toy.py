"""Stored logits of the toy models of tests/model/toy.h: the same bytes in numpy, through transformers.

    toy.py make OUT      writes OUT (f32: for each toy, logits [10, 256] then mtp [9, 256])
    toy.py check OLD     re-makes and compares with what is stored (1e-5 absolute)
    toy.py folder NAME DIR   writes a toy as a model folder, for looking at"""
import json
import pathlib
import struct
import sys
import tempfile

import numpy as np

TOKENS, VOCAB = 10, 256
SMALL = dict(hidden=256, inter=512, layers="gf", n_q=8, n_kv=2, hk=16, hv=16, tied=True, head="bf16", small="bf16")
BIG = dict(hidden=256, inter=512, layers="gf", n_q=24, n_kv=4, hk=16, hv=48, tied=False)
FORMATS = ["bf16", "f16", "f32", "fp8-block", "fp8-channel", "fp8-tensor", "nvfp4-ct", "nvfp4-modelopt", "int8", "ct4",
           "ct4-asym", "ct8", "gptq", "awq"]
TOYS = {f: dict(SMALL, mixer=f, mlp=f) for f in FORMATS}
TOYS["27b-bf16"] = dict(BIG, mixer="bf16", mlp="bf16", head="bf16", small="bf16")
TOYS["27b-mix"] = dict(BIG, layers="gfg", mixer="fp8-channel", mlp="nvfp4-ct", head="int8", small="nvfp4-ct")
IDS = [(i * 37 + 11) % VOCAB for i in range(TOKENS)]
MASK = 2**64 - 1


def seed(name):
    h = 0xCBF29CE484222325
    for c in name.encode():
        h = ((h ^ c) * 0x100000001B3) & MASK
    return np.uint64(h)


def rand(name, n):
    with np.errstate(over="ignore"):
        z = seed(name) + np.arange(n, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def shift(c, k):
    s = 0
    while 4**s < c * k:
        s += 1
    return s


def raw(v, dtype):
    v = np.ascontiguousarray(v, np.float32)
    if dtype == "BF16":
        return (v.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return v.astype(np.float16 if dtype == "F16" else np.float32).tobytes()


class File:
    def __init__(self):
        self.head, self.parts, self.at = {}, [], 0

    def add(self, name, dtype, shape, data):
        self.head[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [self.at, self.at + len(data)]}
        self.parts.append(data)
        self.at += len(data)

    def codes(self, name, dtype, n, k, kind=None):
        c = (rand(name, n * k) & np.uint64(255)).astype(np.uint8)
        if kind == "fp8":
            c = np.where((c & 0x7F) == 0x7F, c ^ 1, c).astype(np.uint8)
        if kind == "nv":
            c = (0x28 + c % 24).astype(np.uint8)
        self.add(name, dtype, [n, k], c.tobytes())

    def scales(self, name, dtype, shape, count, t):
        v = (64 + (rand(name, count) % np.uint64(64)).astype(np.float32)) / np.float32(2.0**t)
        self.add(name, dtype, shape, raw(v, dtype))

    def words(self, name, a, b, base=0, mask=0xFFFFFFFF):
        w = np.uint32(base) + ((rand(name, a * b) & np.uint64(mask)).astype(np.uint32))
        self.add(name, "I32", [a, b], w.tobytes())

    def plain(self, name, fmt, n, k, s):
        r = rand(name, n * k)
        if fmt == "f32":
            v = ((r >> np.uint64(40)).astype(np.int64) - (1 << 23)).astype(np.float32) / np.float32(2.0 ** (s + 16))
        else:
            v = ((r % np.uint64(255)).astype(np.int64) - 127).astype(np.float32) / np.float32(2.0**s)
        self.add(name, fmt.upper(), [n, k], raw(v, fmt.upper()))

    def linear(self, b, fmt, n, k):
        t8, ti, t4 = shift(150994944, k), shift(50466816, k), shift(195364, k)
        if fmt in ("bf16", "f16", "f32"):
            self.plain(b + ".weight", fmt, n, k, shift(5476, k))
        elif fmt.startswith("fp8"):
            self.codes(b + ".weight", "F8_E4M3", n, k, "fp8")
            if fmt == "fp8-block":
                g = [-(-n // 128), -(-k // 128)]
                self.scales(b + ".weight_scale_inv", "BF16", g, g[0] * g[1], t8)
            elif fmt == "fp8-channel":
                self.scales(b + ".weight_scale", "F32", [n, 1], n, t8)
            else:
                self.scales(b + ".weight_scale", "F32", [], 1, t8)
        elif fmt == "nvfp4-ct":
            self.codes(b + ".weight_packed", "U8", n, k // 2)
            self.codes(b + ".weight_scale", "F8_E4M3", n, k // 16, "nv")
            self.add(b + ".weight_global_scale", "F32", [1], np.float32(3 * 2.0 ** shift(1, k)).tobytes())
        elif fmt == "nvfp4-modelopt":
            self.codes(b + ".weight", "U8", n, k // 2)
            self.codes(b + ".weight_scale", "F8_E4M3", n, k // 16, "nv")
            self.add(b + ".weight_scale_2", "F32", [], np.float32(0.3125 / 2.0 ** shift(1, k)).tobytes())
        elif fmt == "int8":
            self.codes(b + ".weight", "I8", n, k)
            self.scales(b + ".weight_scale", "BF16", [n, 1], n, ti)
        elif fmt.startswith("ct"):
            per, group = (4 if fmt == "ct8" else 8), (128 if fmt == "ct4-asym" else 32)
            self.words(b + ".weight_packed", n, k // per)
            self.scales(b + ".weight_scale", "BF16", [n, k // group], n * k // group, ti if fmt == "ct8" else t4)
            self.add(b + ".weight_shape", "I64", [2], np.array([n, k], np.int64).tobytes())
            if fmt == "ct4-asym":
                self.words(b + ".weight_zero_point", n // 8, k // group, 0x66666666, 0x33333333)
        elif fmt == "gptq":
            self.words(b + ".qweight", k // 8, n)
            self.scales(b + ".scales", "F16", [k // 128, n], k // 128 * n, t4)
            self.words(b + ".qzeros", k // 128, n // 8, 0x55555555, 0x33333333)
            self.add(b + ".g_idx", "I32", [k], (np.arange(k) // 128).astype(np.int32).tobytes())
        elif fmt == "awq":
            self.words(b + ".qweight", k, n // 8)
            self.scales(b + ".scales", "F16", [k // 128, n], k // 128 * n, t4)
            self.words(b + ".qzeros", k // 128, n // 8, 0x66666666, 0x33333333)

    def vec(self, name, kind, n):
        r = (rand(name, 4 * n if kind == "conv" else n) % np.uint64(64)).astype(np.float32)
        v = {"norm": (r - 32) / 128, "plain": 1 + (r - 32) / 128, "a": r / 16 - 2, "dt": (r - 32) / 16, "conv": (r - 32) / 64}[kind]
        self.add(name, "BF16", [n, 1, 4] if kind == "conv" else [n], raw(v, "BF16"))

    def bytes(self):
        h = json.dumps(self.head, separators=(",", ":")).encode()
        h += b" " * (-len(h) % 8)
        return struct.pack("<Q", len(h)) + h + b"".join(self.parts)


def layer(f, t, b, full):
    h, q, kv = t["hidden"], t["n_q"] * 256, t["n_kv"] * 256
    c, v = (2 * t["hk"] + t["hv"]) * 128, t["hv"] * 128
    f.vec(b + "input_layernorm.weight", "norm", h)
    f.vec(b + "post_attention_layernorm.weight", "norm", h)
    if full:
        f.linear(b + "self_attn.q_proj", t["mixer"], 2 * q, h)
        f.linear(b + "self_attn.k_proj", t["mixer"], kv, h)
        f.linear(b + "self_attn.v_proj", t["mixer"], kv, h)
        f.linear(b + "self_attn.o_proj", t["mixer"], h, q)
        f.vec(b + "self_attn.q_norm.weight", "norm", 256)
        f.vec(b + "self_attn.k_norm.weight", "norm", 256)
    else:
        f.linear(b + "linear_attn.in_proj_qkv", t["mixer"], c, h)
        f.linear(b + "linear_attn.in_proj_z", t["mixer"], v, h)
        f.linear(b + "linear_attn.in_proj_b", t["small"], t["hv"], h)
        f.linear(b + "linear_attn.in_proj_a", t["small"], t["hv"], h)
        f.linear(b + "linear_attn.out_proj", t["mixer"], h, v)
        f.vec(b + "linear_attn.conv1d.weight", "conv", c)
        f.vec(b + "linear_attn.A_log", "a", t["hv"])
        f.vec(b + "linear_attn.dt_bias", "dt", t["hv"])
        f.vec(b + "linear_attn.norm.weight", "plain", 128)
    f.linear(b + "mlp.gate_proj", t["mlp"], t["inter"], h)
    f.linear(b + "mlp.up_proj", t["mlp"], t["inter"], h)
    f.linear(b + "mlp.down_proj", t["mlp"], h, t["inter"])


def config(t):
    c = {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_size": t["hidden"],
         "intermediate_size": t["inter"], "vocab_size": VOCAB, "num_hidden_layers": len(t["layers"]),
         "num_attention_heads": t["n_q"], "num_key_value_heads": t["n_kv"], "head_dim": 256,
         "linear_num_key_heads": t["hk"], "linear_num_value_heads": t["hv"], "linear_key_head_dim": 128,
         "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 4096,
         "tie_word_embeddings": t["tied"], "mtp_num_hidden_layers": 1, "eos_token_id": 1, "hidden_act": "silu",
         "attn_output_gate": True,
         "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                             "mrope_section": [11, 11, 10], "mrope_interleaved": True},
         "layer_types": ["full_attention" if x == "f" else "linear_attention" for x in t["layers"]]}
    if t["mixer"] == "gptq":
        c["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": False,
                                    "checkpoint_format": "gptq"}
    if t["mixer"] == "awq":
        c["quantization_config"] = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
    return c


def write(t, folder):
    f = File()
    f.plain("model.embed_tokens.weight", "bf16", VOCAB, t["hidden"], 12)
    f.vec("model.norm.weight", "norm", t["hidden"])
    if not t["tied"]:
        f.linear("lm_head", t["head"], VOCAB, t["hidden"])
    for i, kind in enumerate(t["layers"]):
        layer(f, t, f"model.layers.{i}.", kind == "f")
    f.linear("mtp.fc", t["small"], t["hidden"], 2 * t["hidden"])
    for n in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        f.vec(f"mtp.{n}.weight", "norm", t["hidden"])
    layer(f, t, "mtp.layers.0.", True)
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(t)))
    (folder / "model.safetensors").write_bytes(f.bytes())


def make():
    import qwen
    import weights

    out = []
    for name, t in TOYS.items():
        with tempfile.TemporaryDirectory() as d:
            write(t, d)
            ref = qwen.Reference(*weights.dequantised(d))
            logits, _, mtp = ref.run(IDS)
        print(f"{name:16} logits {np.abs(logits).max():.2f} mtp {np.abs(mtp).max():.2f}", file=sys.stderr)
        out += [logits.ravel(), mtp.ravel()]
    return np.concatenate(out).astype(np.float32)


if __name__ == "__main__":
    if sys.argv[1] == "folder":
        write(TOYS[sys.argv[2]], sys.argv[3])
    elif sys.argv[1] == "make":
        make().tofile(sys.argv[2])
    else:
        old, new = np.fromfile(sys.argv[2], np.float32), make()
        worst = np.abs(old - new).max() if old.shape == new.shape else np.inf
        print(f"toy models: stored logits differ from transformers by {worst:.2e} (allowed 1e-5)")
        sys.exit(0 if worst <= 1e-5 else 1)
