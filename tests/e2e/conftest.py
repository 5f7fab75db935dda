import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from server import Server  # noqa: E402


@pytest.fixture(scope="session")
def server():
    s = Server("--ctx", "4096")
    yield s
    assert s.proc.poll() is None, "the front process ended during the tests: " + s.stderr()
    assert s.stop() == 0


@pytest.fixture(scope="session")
def client(server):
    import openai

    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)


@pytest.fixture(scope="session")
def claude(server):
    import anthropic

    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=120)
