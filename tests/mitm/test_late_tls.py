"""TLS is set up when somebody wants it: not before, once, and as it would have been from the start."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from pathlib import Path

from mitmproxy import master, options

from llmproxy.mitm.authority import LateTls, prepare
from tests.mitm.rig import Rig
from tests.mitm.wire import chat


def test_nothing_is_set_up_before_it_is_wanted() -> None:
    """The server does not import mitmproxy's addon for TLS."""
    code = "import llmproxy.mitm.serve, sys; print('mitmproxy.addons.tlsconfig' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False"]


def test_the_first_client_gets_its_handshake(tmp_path: Path) -> None:
    """Https at the port works without --forward, for the first client and for the next."""
    with Rig("replay", tmp_path / "x.db") as rig:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        for _ in range(2):
            with rig.client(20) as c:
                c.sock = context.wrap_socket(c.sock, server_hostname="localhost")
                assert c.ask(chat("nobody knows")).status == 404


def test_it_is_made_once_and_hears_of_changes(tmp_path: Path) -> None:
    """Before it is made a change of options goes nowhere; after that it reaches the one that was made."""

    async def check() -> None:
        opts = options.Options()
        master.Master(opts)
        opts.update(confdir=str(prepare(tmp_path / "one").folder))  # type: ignore[no-untyped-call]
        late = LateTls()
        late.configure({"confdir"})
        made = late.ready()
        first = made.certstore.default_ca
        assert late.ready() is made
        opts.update(confdir=str(prepare(tmp_path / "two").folder))  # type: ignore[no-untyped-call]
        late.configure({"confdir"})
        assert made.certstore.default_ca != first

    asyncio.run(check())
