"""Drive boto3 on Bedrock: converse, converse_stream, invoke_model. Region, credentials and endpoint come from the environment."""

from __future__ import annotations

import json

import boto3

from driver import TOOL_RESULT, WEATHER, main, prompt

client = boto3.client("bedrock-runtime")
MODEL = "anthropic.claude-haiku-4-5-20251001-v1:0"
TOOLS = {"tools": [{"toolSpec": {"name": "get_weather", "description": "Now", "inputSchema": {"json": WEATHER}}}]}
BRIEF = {"system": [{"text": "You are brief."}], "inferenceConfig": {"temperature": 0.5}}


def user(case):
    return {"role": "user", "content": [{"text": prompt(case)}]}


def said(answer):
    """Leave out what no provider sent: the headers of this way of transport."""
    return {key: value for key, value in answer.items() if key != "ResponseMetadata"}


def converse(case, **more):
    return said(client.converse(modelId=MODEL, messages=[user(case)], **BRIEF, **more))


def stream():
    return list(client.converse_stream(modelId=MODEL, messages=[user("stream")], **BRIEF)["stream"])


def tools():
    messages, results = [user("tools")], []
    while True:
        answer = client.converse(modelId=MODEL, messages=messages, toolConfig=TOOLS)
        results.append(said(answer))
        message = answer["output"]["message"]
        calls = [block["toolUse"] for block in message["content"] if "toolUse" in block]
        if not calls:
            return results
        told = [
            {"toolResult": {"toolUseId": call["toolUseId"], "content": [{"text": TOOL_RESULT}], "status": "success"}}
            for call in calls
        ]
        messages += [message, {"role": "user", "content": told}]


def native(case):
    body = {
        "anthropic_version": "bedrock-2023-05-31",
        "max_tokens": 50,
        "messages": [{"role": "user", "content": prompt(case)}],
    }
    return {"modelId": MODEL, "body": json.dumps(body)}


def invoke_stream():
    events = client.invoke_model_with_response_stream(**native("invoke_stream"))["body"]
    return [json.loads(event["chunk"]["bytes"]) for event in events]


main(
    {
        "plain": lambda: converse("plain"), "stream": stream, "tools": tools, "error": lambda: converse("error"),
        "invoke": lambda: json.loads(client.invoke_model(**native("invoke"))["body"].read()),
        "invoke_stream": invoke_stream,
    }
)  # fmt: skip
