"""laoka run from the outside: what it prints where, one object under --json, messages, sessions over restarts, Ctrl-C, a chat on a terminal."""
import json
import os
import pathlib
import pty
import select
import shutil
import signal
import subprocess
import time

import pytest

LAOKA = os.environ["LAOKA"]
Q = 'What does "lighthouse" mean?'
BASE = ["--think", "off", "--temp", "0", "--ctx", "2048"]


def run(*args, stdin=subprocess.DEVNULL, check=0, **kw):
    p = subprocess.run([LAOKA, "run", *args], stdin=stdin, capture_output=True, timeout=300, **kw)
    assert p.returncode == check, p.stderr.decode()
    return p


def run_json(*args, **kw):
    return json.loads(run(*args, "--json", **kw).stdout)


@pytest.fixture(scope="module")
def answer():
    return run_json("-p", Q, *BASE, "--max-tokens", "20")


def test_stdout_is_the_answer_alone(answer):
    p = run("-p", Q, *BASE, "--max-tokens", "20")
    assert p.stdout.decode() == answer["text"] + "\n"
    assert b"prompt 23 tokens" in p.stderr and b"accepted" in p.stderr


def test_json_object(answer):
    assert set(answer) == {"text", "reasoning", "tool_calls", "ids", "finish_reason", "timings"}
    t = answer["timings"]
    assert set(t) == {"prompt_n", "prompt_ms", "cached_n", "predicted_n", "predicted_ms", "predicted_per_second",
                      "draft_n", "draft_n_accepted"}
    assert t["predicted_n"] == len(answer["ids"]) and t["prompt_n"] == 23 and t["cached_n"] == 0
    assert answer["finish_reason"] in ("stop", "length") and answer["reasoning"] == ""


def test_same_answer_any_way(answer):
    for extra in (["--draft", "0"], ["--draft", "3"], ["--threads", "1"], ["--chunk", "64"]):
        assert run_json("-p", Q, *BASE, "--max-tokens", "20", *extra)["ids"] == answer["ids"], extra


def test_prompt_from_standard_input(answer):
    p = subprocess.run([LAOKA, "run", *BASE, "--max-tokens", "20", "--json"], input=Q.encode() + b"\n", capture_output=True,
                       timeout=300)
    assert json.loads(p.stdout)["ids"] == answer["ids"]


def test_messages_and_raw(answer, tmp_path):
    f = tmp_path / "m.json"
    f.write_text(json.dumps({"messages": [{"role": "user", "content": Q}],
                             "chat_template_kwargs": {"enable_thinking": False}}))
    a = run_json("--messages", str(f), "--temp", "0", "--max-tokens", "20", "--ctx", "2048")
    assert a["ids"] == answer["ids"]
    raw = f"<|im_start|>user\n{Q}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert run_json("--raw", raw, *BASE, "--max-tokens", "20")["ids"] == answer["ids"]


def test_seed_and_sampling():
    args = ["-p", Q, "--think", "off", "--ctx", "2048", "--max-tokens", "12", "--seed", "7", "--temp", "1", "--top-k", "0"]
    a = run_json(*args)
    assert a["ids"] == run_json(*args, "--draft", "0", "--threads", "1")["ids"]
    args[args.index("7")] = "8"
    b = run_json(*args)
    assert a["ids"] != b["ids"]


def test_stop_string_is_cut(answer):
    word = answer["text"][5:11]
    a = run_json("-p", Q, *BASE, "--max-tokens", "20", "--stop", word)
    assert a["text"] == answer["text"][: answer["text"].index(word)] and a["finish_reason"] == "stop"


def test_session_over_restarts(answer, tmp_path):
    f = tmp_path / "talk.state"
    a = run_json("-p", Q, *BASE, "--max-tokens", "20", "--session", str(f))
    assert a["ids"] == answer["ids"] and f.exists()
    size = f.stat().st_size
    b = run_json("-p", "And a ship?", *BASE, "--max-tokens", "8", "--session", str(f))
    said = a["timings"]["prompt_n"] + len(a["ids"])
    assert b["timings"]["cached_n"] >= said - 1  # all but the last answer token, which was never fed
    assert b["timings"]["prompt_n"] > said
    again = tmp_path / "cold.json"
    again.write_text(json.dumps([{"role": "user", "content": Q}, {"role": "assistant", "content": a["text"]},
                                 {"role": "user", "content": "And a ship?"}]))
    if a["finish_reason"] == "stop":
        cold = run_json("--messages", str(again), *BASE, "--max-tokens", "8")
        assert cold["timings"]["cached_n"] == 0 and cold["ids"] == b["ids"]
    data = f.read_bytes()
    assert len(data) > size
    for bad in (data[: len(data) // 2], b"not a session", data[:-1] + bytes([data[-1] ^ 1])):
        f.write_bytes(bad)
        p = run("-p", "x", *BASE, "--session", str(f), check=1)
        assert str(f).encode() in p.stderr and p.stdout == b""
        assert f.read_bytes() == bad  # refused and left alone
    f.write_bytes(data)
    p = run("-p", "x", *BASE, "--kv", "f32", "--session", str(f), check=1)
    assert b"another model" in p.stderr
    twin = tmp_path / "twin"  # the same shape and format, another weight: a fine-tune must not go on with this conversation
    shutil.copytree(pathlib.Path(__file__).parents[2] / "models/demo", twin)
    weights = twin / "model.safetensors"
    b = bytearray(weights.read_bytes())
    b[-1] ^= 1
    weights.chmod(0o600)
    weights.write_bytes(b)
    p = run("-m", str(twin), "-p", "x", *BASE, "--session", str(f), check=1)
    assert b"another model" in p.stderr and f.read_bytes() == data


def test_errors_are_one_line():
    for args, code, word in ((["-p", "a", "--raw", "b"], 2, b"one of them"), (["-m", "/nowhere", "-p", "a"], 1, b"/nowhere"),
                             (["-p", "a", "--top-p", "2"], 2, b"top-p"), (["--messages", "/nowhere.json"], 1, b"/nowhere.json")):
        p = run(*args, check=code)
        lines = p.stderr.strip().splitlines()
        assert word in lines[-1] and p.stdout == b"", (args, p.stderr)


def test_long_prompt_is_refused():
    p = run("-p", "word " * 3000, *BASE, check=1)
    assert b"context holds 2048" in p.stderr


def test_ctrl_c_stops_the_answer_only():
    p = subprocess.Popen([LAOKA, "run", "--raw", "one two three", "--temp", "1", "--ctx", "4096", "--seed", "1", "--json"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(4)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=120)
    assert p.returncode == 0, err
    assert json.loads(out)["finish_reason"] in ("cancelled", "stop", "length")


class Terminal:
    def __init__(self, *args):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.execv(LAOKA, [LAOKA, "run", *args])
        self.text, self.at = b"", 0

    def wait(self, what, seconds=120):
        end = time.time() + seconds
        while what not in self.text[self.at:]:
            left = end - time.time()
            assert left > 0, self.text.decode(errors="replace")
            if select.select([self.fd], [], [], left)[0]:
                self.text += os.read(self.fd, 65536)
        self.at = self.text.index(what, self.at) + len(what)

    def send(self, data):
        os.write(self.fd, data)


def test_chat_on_a_terminal():
    t = Terminal("--think", "off", "--temp", "0", "--ctx", "2048", "--max-tokens", "12")
    t.wait(b"> ")
    t.send(Q.encode() + b"\n")
    t.wait(b"accepted")
    t.wait(b"> ")
    t.send(b"\x1b[A\n")  # arrow up: the same question from the history
    t.wait(b"stored")
    t.wait(b"> ")
    t.send(b"half a line\x03")  # Ctrl-C on the line drops it
    time.sleep(0.5)
    t.send(b"/think low\n")
    t.wait(b"thinking: low")
    t.wait(b"> ")
    t.send(b"\x04")
    assert os.waitstatus_to_exitcode(os.waitpid(t.pid, 0)[1]) == 0
    os.close(t.fd)
