"""laoka tokenize: stored ids and renders through the command line, and what wrong use is told."""
import json
import os
import pathlib
import subprocess

import pytest

LAOKA = os.environ["LAOKA"]
VECTORS = pathlib.Path(__file__).parent.parent / "vectors" / "text"


def laoka(*args, status=0):
    p = subprocess.run([LAOKA, "tokenize", *args], capture_output=True, timeout=60)
    assert p.returncode == status, p.stderr
    return p


def test_ids_of_texts(tmp_path):
    cases = [c for c in json.loads((VECTORS / "tokenizer.json").read_text())["cases"] if "t" in c][::25]
    assert len(cases) > 20
    f = tmp_path / "text"
    for c in cases:
        f.write_bytes(c["t"].encode())
        out = json.loads(laoka("--file", f, "--json").stdout)
        assert out == {"text": c["t"], "ids": c["a"]}
    assert laoka("--text", "Hi<|im_end|>").stdout.split()[-1] == b"8130"


def test_renders_of_the_bundled_dialect(tmp_path):
    f = tmp_path / "messages.json"
    for c in json.loads((VECTORS / "chat_render_golden.json").read_text()):
        f.write_text(json.dumps({"messages": c["messages"], "tools": c["kwargs"].get("tools"), "chat_template_kwargs": c["kwargs"]}))
        want = c["render"]["3.8"]
        if isinstance(want, dict):
            p = laoka("--messages", f, "--render", status=1)
            assert p.stderr.decode().endswith(want["error"] + "\n") and p.stdout == b""
        else:
            assert laoka("--messages", f, "--render").stdout.decode() == want
            out = json.loads(laoka("--messages", f, "--render", "--json").stdout)
            assert out["text"] == want and out["ids"] == [int(i) for i in laoka("--messages", f).stdout.split()]


@pytest.mark.parametrize("args,status", [([], 2), (["--text", "a", "--file", "b"], 2), (["--text", "a", "--render"], 2),
                                         (["--file", "/no/such/file"], 1), (["--text", "a", "-m", "/no/such/model"], 1)])
def test_wrong_use_is_one_line(args, status):
    p = laoka(*args, status=status)
    assert p.stdout == b"" and p.stderr.count(b"\n") == 1 and p.stderr.startswith(b"laoka: error: ")
