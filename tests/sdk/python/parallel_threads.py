"""`ThreadPoolExecutor` over OpenAI's SDK; each thread goes on with what it heard, and all join by who ended first."""

from concurrent.futures import ThreadPoolExecutor, as_completed

from openai import OpenAI

from parallel import CALLS, QUESTIONS, URL, repeat

client = OpenAI(base_url=URL, api_key="x", max_retries=0)


def ask(text: str) -> str:
    made = client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
    return made.choices[0].message.content


def main() -> str:
    with ThreadPoolExecutor(CALLS) as pool:
        return ask("join " + " ".join(each.result() for each in as_completed([pool.submit(ask, q) for q in QUESTIONS])))


repeat(main)
