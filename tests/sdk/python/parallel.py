"""What programs that ask several things at once share: they play the same again and again, and print a line each time.

Environment: OPENAI_BASE_URL, CALLS (how many at once), GAP (seconds between their ends; the first question ends last), RUNS, RESET (a URL
that is posted to before each run: the session stands before its first call again).
"""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Callable

URL = os.environ["OPENAI_BASE_URL"]
CALLS, GAP = int(os.environ.get("CALLS", "3")), float(os.environ.get("GAP", "0.02"))
QUESTIONS = [f"q{n} wait={0.03 + GAP * (CALLS - n):.4f}" for n in range(CALLS)]
"""What is asked at once. The provider reads in them how long its answer takes."""


def repeat(once: Callable[[], str]) -> None:
    for _ in range(int(os.environ.get("RUNS", "1"))):
        if reset := os.environ.get("RESET"):
            urllib.request.urlopen(urllib.request.Request(reset, b"{}", {"content-type": "application/json"})).read()
        began = time.monotonic()
        try:
            said = once()
        except Exception as error:
            said = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
        print(f"{time.monotonic() - began:.3f} {said}", flush=True)
