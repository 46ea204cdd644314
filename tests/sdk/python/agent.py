"""An agent on the SDK that is named: it asks, runs the tools it is told to run, and prints what is said at the end.

`python agent.py openai|responses|anthropic|genai|bedrock|litellm QUESTION`. Keys and base URLs come from the environment.
"""

from __future__ import annotations

import json
import os
import sys

from agent_tools import TOOLS, perform, schema

os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS="True")
FUNCTIONS = [
    {"name": name, "description": described, "parameters": schema(name)} for name, (described, _) in TOOLS.items()
]
SYSTEM = "You keep notes."


def key(name):
    return os.environ.get(name) or "unused"


def told(calls, ask):
    """Run calls (name, arguments), and return what each answered."""
    return [perform(name, arguments, ask) for name, arguments in calls]


def openai():
    import openai

    return _chat(openai.OpenAI(api_key=key("OPENAI_API_KEY")).chat.completions.create, model="gpt-4o-mini")


def litellm():
    import gc

    import litellm

    gc.disable()  # see drive_litellm.py
    litellm.suppress_debug_info = True
    return _chat(litellm.completion, model="anthropic/claude-haiku-4-5", api_key=key("ANTHROPIC_API_KEY"))


def _chat(create, **more):
    tools = [{"type": "function", "function": each} for each in FUNCTIONS]

    def ask(question):
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        while True:
            message = create(messages=messages, tools=tools, **more).choices[0].message
            if not message.tool_calls:
                return message.content
            messages.append(message)
            calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]
            for call, result in zip(message.tool_calls, told(calls, ask), strict=True):
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    return ask


def responses():
    import openai

    client = openai.OpenAI(api_key=key("OPENAI_API_KEY"))
    tools = [{"type": "function", **each} for each in FUNCTIONS]

    def ask(question):
        asked = [{"role": "user", "content": question}]
        while True:
            with client.responses.stream(model="gpt-5", instructions=SYSTEM, input=asked, tools=tools) as events:
                answer = events.get_final_response()
            calls = [item for item in answer.output if item.type == "function_call"]
            if not calls:
                return answer.output_text
            asked += [
                {"type": "function_call", "call_id": c.call_id, "name": c.name, "arguments": c.arguments} for c in calls
            ]
            results = told([(call.name, json.loads(call.arguments)) for call in calls], ask)
            for call, result in zip(calls, results, strict=True):
                asked.append({"type": "function_call_output", "call_id": call.call_id, "output": result})

    return ask


def anthropic():
    import anthropic

    client = anthropic.Anthropic(api_key=key("ANTHROPIC_API_KEY"))
    tools = [{"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in FUNCTIONS]
    more = {"model": "claude-haiku-4-5", "max_tokens": 500, "system": SYSTEM, "tools": tools}

    def ask(question):
        messages = [{"role": "user", "content": question}]
        while True:
            with client.messages.stream(messages=messages, **more) as events:
                answer = events.get_final_message()
            calls = [block for block in answer.content if block.type == "tool_use"]
            if not calls:
                return answer.content[0].text
            results = told([(call.name, call.input) for call in calls], ask)
            blocks = [
                {"type": "tool_result", "tool_use_id": call.id, "content": result}
                for call, result in zip(calls, results, strict=True)
            ]
            messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": blocks}]

    return ask


def genai():
    from google import genai
    from google.genai import types

    client = genai.Client(api_key=key("GEMINI_API_KEY"))
    declared = [
        types.FunctionDeclaration(name=f["name"], description=f["description"], parameters_json_schema=f["parameters"])
        for f in FUNCTIONS
    ]
    config = types.GenerateContentConfig(system_instruction=SYSTEM, tools=[types.Tool(function_declarations=declared)])

    def ask(question):
        contents = [types.Content(role="user", parts=[types.Part(text=question)])]
        while True:
            answer = client.models.generate_content(model="gemini-2.5-flash", contents=contents, config=config)
            calls = answer.function_calls
            if not calls:
                return answer.text
            results = told([(call.name, call.args or {}) for call in calls], ask)
            parts = [
                types.Part.from_function_response(name=call.name, response={"result": result})
                for call, result in zip(calls, results, strict=True)
            ]
            contents += [answer.candidates[0].content, types.Content(role="user", parts=parts)]

    return ask


def bedrock():
    import boto3

    client = boto3.client("bedrock-runtime")
    specs = [
        {"name": f["name"], "description": f["description"], "inputSchema": {"json": f["parameters"]}}
        for f in FUNCTIONS
    ]
    more = {
        "modelId": "anthropic.claude-haiku-4-5-20251001-v1:0",
        "system": [{"text": SYSTEM}],
        "toolConfig": {"tools": [{"toolSpec": spec} for spec in specs]},
    }

    def ask(question):
        messages = [{"role": "user", "content": [{"text": question}]}]
        while True:
            message = client.converse(messages=messages, **more)["output"]["message"]
            calls = [block["toolUse"] for block in message["content"] if "toolUse" in block]
            if not calls:
                return message["content"][0]["text"]
            results = told([(call["name"], call["input"]) for call in calls], ask)
            content = [
                {"toolResult": {"toolUseId": call["toolUseId"], "content": [{"text": result}]}}
                for call, result in zip(calls, results, strict=True)
            ]
            messages += [message, {"role": "user", "content": content}]

    return ask


AGENTS = {each.__name__: each for each in (openai, responses, anthropic, genai, bedrock, litellm)}

if __name__ == "__main__":
    print(AGENTS[sys.argv[1]]()(sys.argv[2]), flush=True)
    os._exit(0)  # some SDKs keep threads that would hold up the end
