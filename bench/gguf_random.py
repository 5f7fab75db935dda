"""Random weights at the true shapes of the family, written as GGUF (arch qwen35) without holding a model in memory: 4B in BF16 is 8.4 GB. A block of
each format is made once and repeated; speed does not depend on the values, and nothing here is meant to be read.
No tokenizer: both engines are driven by token ids."""

import gguf
import numpy as np

SHAPES = {  # hidden, feed-forward, layers, query heads, KV heads, delta-net key heads, value heads; all tied, vocabulary 248,320
    "tiny": (256, 512, 4, 8, 2, 16, 16, 4096),
    "0.8b": (1024, 3584, 24, 8, 2, 16, 16, 248320),
    "4b": (2560, 9216, 32, 16, 4, 16, 32, 248320),
}
FORMATS = {"f32": "F32", "bf16": "BF16", "q8_0": "Q8_0", "q4_k": "Q4_K", "q5_k": "Q5_K", "q6_k": "Q6_K", "q4_0": "Q4_0", "q2_k": "Q2_K", "q3_k": "Q3_K",
           "q4_1": "Q4_1", "q5_0": "Q5_0", "q5_1": "Q5_1"}
SCALES = {"Q8_0": (0,), "Q4_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q2_K": (80, 82), "Q3_K": (108,),
          "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2)}  # where the f16 scales of a block stand
TOP = {"Q8_0": 127, "Q4_0": 8, "Q4_K": 945, "Q5_K": 1953, "Q6_K": 4096, "Q2_K": 45, "Q3_K": 128, "Q4_1": 15, "Q5_0": 16, "Q5_1": 31}  # the largest code they multiply
PIECE = 1 << 15  # blocks of a piece


def piece(kind, rng):
    """Bytes of PIECE blocks of a quantisation type; values of about 0.02."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    if kind in ("F32", "BF16"):
        x = (rng.standard_normal(PIECE * 8) * 0.02).astype(np.float32)
        return x.view(np.uint8) if kind == "F32" else (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    b = rng.integers(0, 256, (PIECE, size), np.uint8)
    for at in SCALES[kind]:
        b[:, at:at + 2] = (rng.standard_normal(PIECE) * 0.04 / TOP[kind]).astype(np.float16).view(np.uint8).reshape(-1, 2)
    return b.reshape(-1)


def tensors(shape):
    """(name, rows, columns, keep F32); rows 0: a vector."""
    h, ff, layers, nq, nkv, hk, hv, vocab = SHAPES[shape]
    ch = 2 * hk * 128 + hv * 128
    yield "token_embd.weight", vocab, h, 0
    yield "output_norm.weight", 0, h, 1
    for i in range(layers):
        mixer = ([("attn_q", 2 * nq * 256, h), ("attn_k", nkv * 256, h), ("attn_v", nkv * 256, h), ("attn_output", h, nq * 256)] if i % 4 == 3 else
                 [("attn_qkv", ch, h), ("attn_gate", hv * 128, h), ("ssm_alpha", hv, h), ("ssm_beta", hv, h), ("ssm_out", h, hv * 128)])
        vectors = [("attn_norm.weight", h), ("post_attention_norm.weight", h)]
        vectors += [("attn_q_norm.weight", 256), ("attn_k_norm.weight", 256)] if i % 4 == 3 else [("ssm_norm.weight", 128), ("ssm_a", hv), ("ssm_dt.bias", hv)]
        for name, n, k in mixer + [("ffn_gate", ff, h), ("ffn_up", ff, h), ("ffn_down", h, ff)]:
            yield f"blk.{i}.{name}.weight", n, k, 0
        for name, n in vectors:
            yield f"blk.{i}.{name}", 0, n, 1
        if i % 4 != 3:
            yield f"blk.{i}.ssm_conv1d.weight", ch, 4, 1


def header(w, shape):
    h, ff, layers, nq, nkv, hk, hv, vocab = SHAPES[shape]
    w.add_block_count(layers)
    w.add_context_length(262144)
    w.add_embedding_length(h)
    w.add_feed_forward_length(ff)
    w.add_head_count(nq)
    w.add_head_count_kv(nkv)
    w.add_key_length(256)
    w.add_value_length(256)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_dimension_count(64)
    w.add_array("qwen35.rope.dimension_sections", [11, 11, 10, 0])
    w.add_rope_freq_base(1e7)
    for k, v in (("conv_kernel", 4), ("state_size", 128), ("group_count", hk), ("time_step_rank", hv), ("inner_size", hv * 128)):
        w.add_uint32(f"qwen35.ssm.{k}", v)
    w.add_uint32("qwen35.full_attention_interval", 4)
    w.add_vocab_size(vocab)
    w.add_tokenizer_model("none")


def values(name, count, rng):
    """Small F32 tensors: norms near 1, A below 0, the rest near 0."""
    x = rng.standard_normal(count).astype(np.float32) * 0.1
    return -np.exp(x) if name.endswith("ssm_a") else x + 1 if "norm" in name else x


def write(path, shape, fmt, seed=1):
    """Returns the bytes of the tensors."""
    rng = np.random.default_rng(seed)
    kind = gguf.GGMLQuantizationType[FORMATS[fmt]]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    part = piece(kind.name, rng)
    w = gguf.GGUFWriter(path, "qwen35")
    header(w, shape)
    all_tensors, total = list(tensors(shape)), 0
    for name, n, k, keep in all_tensors:
        dims = (n, k) if n else (k,)
        count = max(n, 1) * k
        nbytes = count * 4 if keep else count // block * size
        w.add_tensor_info(name, dims if keep or kind < 2 or kind.name == "BF16" else gguf.quant_shape_to_byte_shape(dims, kind),
                          np.dtype(np.float32 if keep or kind == 0 else np.uint16 if kind.name == "BF16" else np.uint8), nbytes,
                          raw_dtype=gguf.GGMLQuantizationType.F32 if keep else kind)
        total += nbytes
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    out = w.fout[0]
    w.write_padding(out, out.tell())
    for name, n, k, keep in all_tensors:
        count = max(n, 1) * k
        if keep:
            data = values(name, count, rng).tobytes()
            out.write(data)
            done = len(data)
        else:
            done = count // block * size
            for at in range(0, done, len(part)):
                out.write(part[:min(len(part), done - at)].data)
        w.write_padding(out, done)
    w.close()
    return total


if __name__ == "__main__":
    import sys

    print(write(*sys.argv[1:4]))
