"""Structured output: what comes back parses and matches, or the schema is refused by name."""

import json

import openai
import pytest

PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
          "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 2}},
          "required": ["name", "age", "tags"], "additionalProperties": False}
ASK = [{"role": "user", "content": "Describe a person as JSON."}]


def fmt(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


def check_person(text):
    o = json.loads(text)
    assert set(o) == {"name", "age", "tags"} and isinstance(o["name"], str) and 0 <= o["age"] <= 150
    assert 1 <= len(o["tags"]) <= 2 and set(o["tags"]) <= {"a", "b"}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_schema_holds_when_sampled(client, seed):
    r = client.chat.completions.create(model="demo", messages=ASK, response_format=fmt(PERSON), temperature=1.0, seed=seed,
                                       max_tokens=200, extra_body={"enable_thinking": False})
    assert r.choices[0].finish_reason == "stop"
    check_person(r.choices[0].message.content)


def test_schema_begins_after_thinking(client):
    r = client.chat.completions.create(model="demo", messages=ASK, response_format=fmt(PERSON), temperature=0, max_tokens=200,
                                       extra_body={"thinking_budget": 12})
    assert r.choices[0].message.reasoning_content
    check_person(r.choices[0].message.content)


def test_parse_helper_of_the_client(client):
    from typing import Literal

    from pydantic import BaseModel

    class Answer(BaseModel):
        kind: Literal["cat", "dog"]
        count: int

    r = client.chat.completions.parse(model="demo", messages=ASK, response_format=Answer, temperature=1, seed=4, max_tokens=60,
                                      extra_body={"enable_thinking": False})
    assert r.choices[0].message.parsed.kind in ("cat", "dog")


def test_responses_and_messages_take_schemas(client, claude):
    r = client.responses.create(model="demo", input="A person.", reasoning={"effort": "none"}, max_output_tokens=200, temperature=0.8,
                                text={"format": {"type": "json_schema", "name": "p", "schema": PERSON}})
    check_person(r.output_text)
    m = claude.messages.create(model="x", max_tokens=200, messages=ASK, thinking={"type": "disabled"},
                               extra_body={"output_config": {"format": {"type": "json_schema", "schema": PERSON}}})
    check_person(m.content[0].text)


def test_unsupported_keyword_is_named(client):
    with pytest.raises(openai.BadRequestError, match="patternProperties") as e:
        client.chat.completions.create(model="demo", messages=ASK, response_format=fmt({"type": "object", "patternProperties": {"a": {}}}))
    assert e.value.body["param"] == "response_format.json_schema.schema"


def test_required_call_has_typed_arguments(client):
    tools = [{"type": "function", "function": {"name": "set_age", "parameters": {"type": "object", "properties": {
        "age": {"type": "integer"}, "who": {"enum": ["me", "you"]}}, "required": ["age", "who"]}}}]
    r = client.chat.completions.create(model="demo", messages=ASK, tools=tools, tool_choice="required", temperature=1, seed=2,
                                       max_tokens=120, extra_body={"enable_thinking": False})
    assert r.choices[0].finish_reason == "tool_calls"
    args = json.loads(r.choices[0].message.tool_calls[0].function.arguments)
    assert isinstance(args["age"], int) and args["who"] in ("me", "you")
