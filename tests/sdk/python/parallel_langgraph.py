"""A LangGraph whose nodes run at once on threads, and whose last node reads a list that they wrote."""

import operator
from typing import Annotated, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

from parallel import QUESTIONS, URL, repeat

model = ChatOpenAI(base_url=URL, api_key="x", model="m", max_retries=0)


class State(TypedDict):
    said: Annotated[list, operator.add]


def main() -> str:
    heard, graph = [], StateGraph(State)
    for name, text in enumerate(QUESTIONS):

        def node(_: State, text: str = text) -> State:
            heard.append(model.invoke(text).content)
            return {"said": heard[-1:]}

        graph.add_node(str(name), node)
        graph.add_edge(START, str(name))
    graph.add_node("join", lambda _: {"said": [model.invoke("join " + " ".join(heard)).content]})
    graph.add_edge([str(name) for name in range(len(QUESTIONS))], "join")
    graph.add_edge("join", END)
    return graph.compile().invoke({"said": []})["said"][-1]


repeat(main)
