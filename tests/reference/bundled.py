#!/usr/bin/env python3
"""Stored logits of the bundled model: models/demo de-quantised by weights.py and run by transformers.

    bundled.py make models/demo OUT       writes OUT.json (ids, greedy ids) and OUT.f32 (every 61st logit, then MTP logit)
    bundled.py check models/demo OUT      re-makes and compares"""
import json
import pathlib
import sys

import numpy as np
import qwen
import weights
from tokenizers import Tokenizer

STEP, GREEDY = 61, 24
TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
TEXTS = [TURN.format('What does "harbour" mean?'), "def reverse(items):\n    \"\"\"Return the items", "设置打印机的方法", "The kernel's"]


def make(model):
    ref = qwen.Reference(*weights.dequantised(model))
    tok = Tokenizer.from_file(str(pathlib.Path(model) / "tokenizer.json"))
    prompts, out = [], []
    for text in TEXTS:
        ids = tok.encode(text).ids
        logits, _, mtp = ref.run(ids)
        prompts.append({"ids": ids, "greedy": ref.greedy(ids, GREEDY)})
        out += [logits[:, ::STEP].ravel(), mtp[:, ::STEP].ravel()]
    return {"step": STEP, "prompts": prompts}, np.concatenate(out).astype(np.float32)


def main(what, model, path):
    js, f = make(model)
    if what == "make":
        pathlib.Path(path + ".json").write_text(json.dumps(js) + "\n")
        f.tofile(path + ".f32")
        return 0
    same = json.loads(pathlib.Path(path + ".json").read_text()) == js
    old = np.fromfile(path + ".f32", np.float32)
    worst = np.abs(old - f).max() if old.shape == f.shape else np.inf
    print(f"bundled model: ids and greedy ids {'equal' if same else 'DIFFER'}, stored logits differ by {worst:.1e} (allowed 1e-4)")
    return 0 if same and worst <= 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
