"""What children tell of the hosts that they ask for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from llmproxy.client.doctor.lookups import HostLookup, log_in, past_by_name, read_lookups, watching
from tests.support.process import clean_env


def test_hosts_of_providers_and_of_the_web_count() -> None:
    """Loopback, a database and the proxy's own port are nobody's business; one host counts once."""
    told = [
        HostLookup(1, "python", "api.openai.com", 0),
        HostLookup(1, "python", "api.openai.com", 443),
        HostLookup(1, "python", "db.example.com", 5432),
        HostLookup(2, "node", "localhost", 443),
        HostLookup(2, "node", "127.0.0.1", 80),
        HostLookup(3, "node", "gateway.example.com", 80),
    ]
    assert past_by_name(told) == {
        1: ("python", [("api.openai.com", 443)]),
        3: ("node", [("gateway.example.com", 80)]),
    }


def test_what_was_looked_up_and_led_nowhere_counts() -> None:
    """No name can be resolved, so nobody connects: the name alone is left, or the name server where that cannot be reached."""
    told = [
        HostLookup(1, "curl", "llm.corp.test", 0),
        HostLookup(2, "java", "api.openai.com", 0),
        HostLookup(2, "java", "10.9.9.9", 443),
        HostLookup(3, "go", "10.9.9.9", 443),
        HostLookup(3, "go", "10.9.9.9", 5432),
        HostLookup(4, "psql", "db.corp.test", 0),
        HostLookup(4, "psql", "10.0.0.7", 5432),
        HostLookup(5, "python", "db.corp.test", 5432),
        HostLookup(5, "python", "db.corp.test", 0),
        HostLookup(5, "python", "10.0.0.53", 53),
        HostLookup(6, "curl", "10.0.0.53", 53),
        HostLookup(7, "java", "laptop.corp.test", 0),
        HostLookup(8, "curl", "llm.corp.test", 0),
        HostLookup(8, "curl", "10.0.0.53", 53),
    ]
    assert past_by_name(told, "laptop") == {
        1: ("curl", [("llm.corp.test", 0)]),
        2: ("java", [("api.openai.com", 443)]),
        3: ("go", [("10.9.9.9", 443)]),
        6: ("curl", [("10.0.0.53", 53)]),
        8: ("curl", [("llm.corp.test", 0)]),
    }


def test_a_program_s_own_start_is_not_changed(tmp_path: Path) -> None:
    """Its sitecustomize runs, its PYTHONPATH and NODE_OPTIONS stay, and a log that cannot be written is no error."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "sitecustomize.py").write_text("import sys; sys.customised = True\n")
    env = {"PYTHONPATH": str(mine), "NODE_OPTIONS": "--no-warnings"}
    given = watching(env, tmp_path)
    assert given["PYTHONPATH"].endswith(f"{os.pathsep}{mine}")
    assert given["NODE_OPTIONS"].startswith("--no-warnings --require ")
    code = "import socket, sys; socket.getaddrinfo('127.0.0.1', 80); print(sys.customised)"
    for log in (given["LLMPROXY_DOCTOR"], str(tmp_path)):
        words = clean_env(given | {"LLMPROXY_DOCTOR": log})
        done = subprocess.run([sys.executable, "-c", code], env=words, capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == ("True\n", "")
    assert [(each.host, each.port) for each in read_lookups(tmp_path)] == [("127.0.0.1", 80)]


def test_a_broken_line_is_left_out(tmp_path: Path) -> None:
    """Two children may write at once, and one may be killed while it does."""
    assert list(read_lookups(tmp_path)) == []
    log_in(tmp_path).write_text("7\tapi.x.com\t443\tpython\n8\t\nnot a pid\ta\tb\tc\n9\th")
    assert list(read_lookups(tmp_path)) == [HostLookup(7, "python", "api.x.com", 443), HostLookup(9, "", "h", 0)]
