"""Starts `laoka serve` on a free port and says how it is: used by all end-to-end tests."""

import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAOKA = os.environ.get("LAOKA", str(ROOT / "build" / "laoka"))


class Server:
    def __init__(self, *flags, wait=True, env=None, preexec_fn=None):
        self.log = tempfile.TemporaryFile(mode="w+b")
        self.proc = subprocess.Popen([LAOKA, "serve", "--port", "0", *flags], stderr=self.log, stdout=subprocess.DEVNULL,
                                     env={**os.environ, **(env or {})}, preexec_fn=preexec_fn)
        self.port = self._wait_port()
        self.url = f"http://127.0.0.1:{self.port}"
        if wait:
            self.wait_ready()

    def stderr(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def _wait_port(self):
        end = time.time() + 30
        while time.time() < end:
            m = re.search(r"listening on http://[^:]+:(\d+)", self.stderr())
            if m:
                return int(m.group(1))
            if self.proc.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError("the server did not listen: " + self.stderr())

    def request(self, method, path, body=None, headers=None, timeout=120):
        """(status, headers, bytes), whatever the status"""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        head = {"Content-Type": "application/json", **(headers or {})}
        r = urllib.request.Request(self.url + path, data=data, method=method, headers=head)
        try:
            with urllib.request.urlopen(r, timeout=timeout) as a:
                return a.status, a.headers, a.read()
        except urllib.error.HTTPError as e:
            return e.code, e.headers, e.read()

    def get(self, path):
        status, _, body = self.request("GET", path)
        return status, json.loads(body)

    def post(self, path, body, **kw):
        status, _, out = self.request("POST", path, body, **kw)
        return status, json.loads(out)

    def wait_ready(self, seconds=60):
        end = time.time() + seconds
        while time.time() < end:
            try:
                if self.request("GET", "/health", timeout=5)[0] == 200:
                    return
            except OSError:
                pass
            if self.proc.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError("the server did not become ready: " + self.stderr())

    def wait_idle(self, seconds=60):
        """until no request is running or waiting; returns the seconds it took"""
        t = time.time()
        while time.time() - t < seconds:
            s = self.get("/slots")[1]
            if not s["requests"] and not s["running"]:
                return time.time() - t
            time.sleep(0.02)
        raise AssertionError("work is still there: " + json.dumps(self.get("/slots")[1]))

    def engine_pid(self):
        return self.get("/slots")[1]["engine_pid"]

    def stop(self):
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGTERM)
            try:
                self.proc.wait(60)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()
        self.log.close()
        return self.proc.returncode


def sse(raw):
    """Events of a stream as (name, data text); checks the framing on the way."""
    text = raw.decode("utf-8")  # every line must be valid UTF-8
    out = []
    for block in text.split("\n\n"):
        name, data = None, None
        for line in block.split("\n"):
            if not line or line.startswith(":"):
                continue
            key, _, value = line.partition(": ")
            assert key in ("event", "data"), line
            if key == "event":
                name = value
            else:
                data = value
        if data is not None:
            out.append((name, data))
    return out
