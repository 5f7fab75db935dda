"""The reference: transformers' Qwen3.5 text model in f32 with eager attention, and the MTP layer built from the same
classes (transformers itself leaves mtp.* out)."""
import copy

import numpy as np
import torch
from transformers.models.qwen3_5 import modeling_qwen3_5 as hf
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

DROP = ("quantization_config", "architectures", "transformers_version", "mtp_num_hidden_layers", "dtype", "torch_dtype")


def text_config(config):
    text = {**config, **config.get("text_config", {})}
    keep = {k: v for k, v in text.items() if k not in DROP and not k.endswith("_config") and "token_id" not in k}
    keep["tie_word_embeddings"] = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False)))
    c = Qwen3_5TextConfig(**keep)
    c._attn_implementation = "eager"
    return c


class Reference:
    def __init__(self, config, weights):
        self.config = text_config(config)
        torch.set_grad_enabled(False)
        with torch.device("meta"):
            self.model = hf.Qwen3_5ForCausalLM(self.config)
        state = {k if k.startswith("lm_head") else "model." + k: torch.from_numpy(np.ascontiguousarray(v))
                 for k, v in weights.items() if not k.startswith("mtp.")}
        if self.config.tie_word_embeddings:
            state["lm_head.weight"] = state["model.embed_tokens.weight"]
        missing, unexpected = self.model.load_state_dict(state, strict=False, assign=True)
        unexpected = [k for k in unexpected if not k.endswith(("k_scale", "v_scale"))]
        assert not missing and not unexpected, (missing, unexpected)
        self.model.model.rotary_emb = hf.Qwen3_5TextRotaryEmbedding(self.config)
        self.model.float().eval()
        self.mtp = self.build_mtp({k[4:]: torch.from_numpy(np.ascontiguousarray(v)) for k, v in weights.items() if k.startswith("mtp.")})

    def build_mtp(self, w):
        if not w:
            return None
        c = copy.deepcopy(self.config)
        c.layer_types, c.num_hidden_layers = ["full_attention"], 1
        c._attn_implementation = "eager"
        layer = hf.Qwen3_5DecoderLayer(c, 0)
        layer.load_state_dict({k[9:]: v for k, v in w.items() if k.startswith("layers.0.")})
        norms = {}
        for n in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            norms[n] = hf.Qwen3_5RMSNorm(c.hidden_size, eps=c.rms_norm_eps)
            norms[n].load_state_dict({"weight": w[n + ".weight"]})
        return layer.float().eval(), norms, w["fc.weight"].float()

    def hidden(self, ids):
        """[layers+1, tokens, hidden]: embedding, after each layer, the last after the final norm"""
        got, hooks = [], []
        base = self.model.model
        hooks.append(base.embed_tokens.register_forward_hook(lambda m, i, o: got.append(o[0].clone())))
        for layer in base.layers[:-1]:
            hooks.append(layer.register_forward_hook(lambda m, i, o: got.append((o if torch.is_tensor(o) else o[0]).reshape(len(ids), -1).clone())))
        last = base(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0]
        for h in hooks:
            h.remove()
        return torch.stack(got + [last])

    def head(self, x):
        return x @ self.model.lm_head.weight.float().T

    def mtp_logits(self, ids, final):
        """[tokens-1, vocab]: row t from final hidden t and token t+1, at position t"""
        layer, norms, fc = self.mtp
        e = norms["pre_fc_norm_embedding"](self.model.model.embed_tokens(torch.tensor(ids[1:])))
        h = norms["pre_fc_norm_hidden"](final[:-1])
        x = (torch.cat([e, h], -1) @ fc.T)[None]
        n = x.shape[1]
        rope = self.model.model.rotary_emb(x, torch.arange(n).view(1, 1, -1).expand(3, 1, -1))
        mask = torch.full((1, 1, n, n), float("-inf")).triu(1)
        y = layer(x, position_embeddings=rope, attention_mask=mask)
        y = y if torch.is_tensor(y) else y[0]
        return self.head(norms["norm"](y.reshape(n, -1)))

    def run(self, ids):
        """logits, hidden, mtp logits (or None) as numpy"""
        h = self.hidden(ids)
        mtp = self.mtp_logits(ids, h[-1]).numpy() if self.mtp and len(ids) > 1 else None
        return self.head(h[-1]).numpy(), h.numpy(), mtp

    def greedy(self, ids, n, stop=()):
        ids, out = list(ids), []
        cache, step = None, torch.tensor([ids])
        for _ in range(n):
            r = self.model.model(input_ids=step, use_cache=True, cache=cache)
            cache = r.cache
            out.append(int(self.head(r.last_hidden_state[0, -1]).argmax()))
            if out[-1] in stop:
                break
            step = torch.tensor([[out[-1]]])
        return out
