#!/usr/bin/env python3
"""laoka on .ninfer files against transformers on the values they hold: greedy ids equal, logits within compare.py's bounds.

    ninfer.py LAOKA TEST_NINFER   writes the six files and their float32 folders with TEST_NINFER --write (the writer is built from the format's
                                  description: no library for it runs here)"""
import json
import pathlib
import subprocess
import sys
import tempfile

import compare
import qwen
import weights
from tokenizers import Tokenizer

TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
TEXT, GREEDY = TURN.format('What does "harbour" mean?'), 24


def check(laoka, file, folder):
    ref = qwen.Reference(*weights.dequantised(folder))
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT).ids
    stop = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    want = ref.greedy(ids, GREEDY, stop if isinstance(stop, list) else [stop])
    out = subprocess.run([laoka, "run", "-m", file, "--raw", TEXT, "--temp", "0", "--max-tokens", str(GREEDY), "--ctx", "1024", "--json"], check=True,
                         capture_output=True, text=True).stdout
    got = json.loads(out)["ids"]
    ok = compare.verdict(file.name, compare.differences(laoka, file, ref, ids))
    same = got == want[:len(got)] and len(want) - len(got) <= 1  # laoka does not print the stop token
    print(f"{file.name:28} greedy ids {'equal' if same else f'DIFFER: {got} for {want}'}")
    return ok and same


def main(laoka, writer):
    with tempfile.TemporaryDirectory() as d:
        d = pathlib.Path(d)
        subprocess.run([writer, "--write", d], check=True)
        return all([check(laoka, f, d / f"{f.stem}.f32") for f in sorted(d.glob("*.ninfer"))])


if __name__ == "__main__":
    sys.exit(not main(*sys.argv[1:]))
