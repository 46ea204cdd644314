"""A Graph of strands: agents at once, whose answers the last one gets in the order in which they ended."""

from strands import Agent
from strands.models.openai import OpenAIModel
from strands.multiagent import GraphBuilder

from parallel import QUESTIONS, URL, repeat


def agent(name: str, text: str) -> Agent:
    model = OpenAIModel(client_args={"base_url": URL, "api_key": "x", "max_retries": 0}, model_id="m")
    return Agent(model=model, system_prompt=text, callback_handler=None, name=name)


def main() -> str:
    made = GraphBuilder()
    for name, text in (("start", "start"), ("join", "join"), *((f"q{n}", text) for n, text in enumerate(QUESTIONS))):
        made.add_node(agent(name, text), name)
    for n in range(len(QUESTIONS)):
        made.add_edge("start", f"q{n}")
        made.add_edge(f"q{n}", "join", condition=lambda state: len(state.completed_nodes) > len(QUESTIONS))
    made.set_entry_point("start")
    return str(made.build()("go").results["join"].result).strip()


repeat(main)
