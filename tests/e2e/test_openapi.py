"""schemathesis against the server's own description: no 500, no reply that the description does not allow. A few requests an
endpoint here; `make e2e-long` draws 2,000 and sends the some 1,400 that differ."""

import os

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CHECKS

from server import Server

LONG = os.environ.get("LK_LONG") == "1"
SKIPPED = {
    # valid by the schema and still wrong: a tool_choice without tools, an unknown response id, an unsupported schema keyword
    "positive_data_acceptance",
    # unknown fields are ignored, as the APIs themselves do
    "negative_data_rejection",
}


def checks():
    return [c for c in CHECKS.get_all() if c.__name__ not in SKIPPED]


def test_description_is_served(server):
    o = server.get("/openapi.json")[1]
    assert o["openapi"].startswith("3.1") and "/v1/chat/completions" in o["paths"]


def cap(body):
    """the small model is to be asked often, not long"""
    if isinstance(body, dict):
        for k in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            if isinstance(body.get(k), int) and not isinstance(body.get(k), bool):
                body[k] = min(body[k], 2)
        if isinstance(body.get("n"), int) and not isinstance(body.get("n"), bool):
            body["n"] = min(body["n"], 3)
        if "content" not in body and "tokens" not in body:
            body.setdefault("max_tokens", 2)
            body.setdefault("max_output_tokens", 2)
    return body


def test_fuzz():
    s = Server("--ctx", "1024", "--queue", "64")
    sent = [0]
    try:
        schema = schemathesis.openapi.from_url(s.url + "/openapi.json")
        operations = [r.ok() for r in schema.get_all_operations()]
        each = 2000 // len(operations) + 1 if LONG else 8
        for op in operations:
            strategy = op.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE) | op.as_strategy(
                generation_mode=schemathesis.GenerationMode.NEGATIVE)

            @settings(max_examples=each, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
                      suppress_health_check=list(HealthCheck))
            @given(case=strategy)
            def run(case):
                case.body = cap(case.body)
                sent[0] += 1
                response = case.call(base_url=s.url, timeout=120)
                assert response.status_code < 500, response.text
                case.validate_response(response, checks=checks())

            run()
        print(f"schemathesis: {sent[0]} requests over {len(operations)} operations")
        assert s.get("/health")[0] == 200
    finally:
        assert s.stop() == 0
