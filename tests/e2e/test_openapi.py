"""schemathesis against the server's own description: all of its checks, over requests that fit the description and requests that
do not. 160 requests here; `make e2e-long` sends 2,000."""

import os

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import CHECKS

from server import Server

LONG = os.environ.get("LK_LONG") == "1"
TOTAL = 2000 if LONG else 160
# Two of its checks hold for nearly all requests and are asked for here in a form of our own (fits below): a description cannot
# say that a tool_choice needs tools, that a response id must exist, or which JSON schemas can be enforced.
OWN_FORM = {"positive_data_acceptance", "negative_data_rejection"}
# 400 for a request that fits the description must be one of these: what no description can say
BEYOND = {"invalid_value", "unsupported_schema", "conflicting_template_option", "context_length_exceeded", "invalid_request",
          "parameter_not_supported", "modality_not_supported", "item_type_not_supported", "tool_choice_not_supported", "tool_type_not_supported"}


def checks():
    return [c for c in CHECKS.get_all() if c.__name__ not in OWN_FORM]


def fits(case, response, positive):
    """positive_data_acceptance and negative_data_rejection, as far as the description reaches"""
    if response.status_code == 400 and positive:
        o = response.json()["error"]
        assert o.get("code", "invalid_value") in BEYOND or "NUL" in o["message"], response.text  # NUL in a key
        assert o["message"]
    assert response.status_code in (200, 400, 401, 404, 405, 413, 429), response.text


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
    sent, by_status = [0], {}
    try:
        schema = schemathesis.openapi.from_url(s.url + "/openapi.json")
        operations = [r.ok() for r in schema.get_all_operations()]
        posts = [op for op in operations if op.method.upper() == "POST"]

        def fuzz(op, mode, n, round_):
            @seed(1000 * round_ + len(op.path))
            @settings(max_examples=n, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
            @given(case=op.as_strategy(generation_mode=mode))
            def run(case):
                if sent[0] >= TOTAL:
                    return
                case.body = cap(case.body)
                sent[0] += 1
                response = case.call(base_url=s.url, timeout=120)
                by_status[response.status_code] = by_status.get(response.status_code, 0) + 1
                assert response.status_code < 500, response.text
                fits(case, response, mode is POSITIVE)
                case.validate_response(response, checks=checks())

            try:
                run()
            except Unsatisfiable:
                assert mode is NEGATIVE and op.method.upper() != "POST"  # nothing to be wrong about

        POSITIVE, NEGATIVE = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
        for op in operations:  # every endpoint, once around
            for mode in (POSITIVE, NEGATIVE):
                fuzz(op, mode, 4, 0)
        for round_ in range(1, 100):  # endpoints without a body have few different requests: the rest goes to those with one
            for op in posts:
                for mode in (POSITIVE, NEGATIVE):
                    if sent[0] < TOTAL:
                        fuzz(op, mode, min(25, TOTAL // 8), round_)
            if sent[0] >= TOTAL:
                break
        print(f"schemathesis: {sent[0]} requests over {len(operations)} operations, by status {dict(sorted(by_status.items()))}")
        assert sent[0] == TOTAL
        assert s.get("/health")[0] == 200
    finally:
        assert s.stop() == 0
