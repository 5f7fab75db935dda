#!/usr/bin/env python3
"""laoka against transformers on any model folder and any prompt: logits at every position, every hidden layer, MTP logits.

    compare.py LAOKA MODEL_FOLDER (--ids FILE.json | --text TEXT ... | --random N) [-- more flags of laoka score]

Weights are de-quantised by weights.py and run by transformers in f32. Ends with 1 when a difference is over the bound."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

BOUNDS = {"logits": 2e-3, "hidden": 1e-3, "mtp": 2e-3}


def score(laoka, model, ids, vocab, layers, hidden, mtp, flags=()):
    """(logits, hidden, mtp, json) as laoka computes them"""
    with tempfile.TemporaryDirectory() as d:
        d = pathlib.Path(d)
        (d / "ids").write_text(json.dumps(ids))
        cmd = [laoka, "score", "-m", str(model), "--ids", d / "ids", "--logits", d / "l", "--hidden", d / "h", "--json", *flags]
        if mtp:
            cmd += ["--mtp", d / "m"]
        out = subprocess.run(cmd, check=True, capture_output=True, text=True).stdout
        f = lambda n, *s: np.fromfile(d / n, np.float32).reshape(s)
        return (f("l", len(ids), vocab), f("h", layers + 1, len(ids), hidden), f("m", len(ids) - 1, vocab) if mtp else None,
                json.loads(out))


def differences(laoka, model, ref, ids, flags=()):
    c = ref.config
    logits, hidden, mtp = ref.run(ids)
    l, h, m, js = score(laoka, model, ids, c.vocab_size, c.num_hidden_layers, c.hidden_size, mtp is not None, flags)
    rel = max(np.abs(h[i] - hidden[i]).max() / np.abs(hidden[i]).max() for i in range(len(h)))
    d = {"logits": np.abs(l - logits).max(), "hidden": rel}
    if mtp is not None:
        d["mtp"] = np.abs(m - mtp).max()
    x = logits.astype(np.float64)
    top = x.max(-1)
    nll = np.log(np.exp(x - top[:, None]).sum(-1)) + top - np.append(x[np.arange(len(ids) - 1), ids[1:]], 0)
    d["nll"] = abs(nll[:-1].sum() - js["nll"]) / nll[:-1].sum() if len(ids) > 1 else 0.0
    return d


def verdict(name, d):
    bad = [k for k, b in {**BOUNDS, "nll": 1e-4}.items() if not d.get(k, 0) <= b]
    print(f"{name:28}", " ".join(f"{k} {v:.1e}" for k, v in d.items()), "FAILED: " + ", ".join(bad) if bad else "ok", flush=True)
    return not bad


def main():
    import qwen
    import weights

    p = argparse.ArgumentParser()
    p.add_argument("laoka")
    p.add_argument("model")
    p.add_argument("--ids")
    p.add_argument("--text", action="append", default=[])
    p.add_argument("--random", type=int)
    p.add_argument("flags", nargs="*")
    a = p.parse_args()
    prompts = []
    if a.ids:
        rows = json.loads(pathlib.Path(a.ids).read_text())
        prompts += rows if isinstance(rows[0], list) else [rows]
    if a.text:
        from tokenizers import Tokenizer

        tok = Tokenizer.from_file(str(pathlib.Path(a.model) / "tokenizer.json"))
        prompts += [tok.encode(t).ids for t in a.text]
    ref = qwen.Reference(*weights.dequantised(a.model))
    if a.random:
        prompts.append(np.random.default_rng(a.random).integers(0, ref.config.vocab_size, a.random).tolist())
    ok = [verdict(f"prompt {i} ({len(ids)} tokens)", differences(a.laoka, a.model, ref, ids, a.flags)) for i, ids in enumerate(prompts)]
    sys.exit(not all(ok))


if __name__ == "__main__":
    main()
