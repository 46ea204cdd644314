"""mitmproxy comes without what we never use, whole where somebody wants it, and untouched where it was there before us."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llmproxy.calls_and_totals import Call
from llmproxy.core.sessions.exchange import EngineConfig
from llmproxy.errors import CassetteCorrupt, CassetteNotFound
from llmproxy.mitm.serve import (
    build_engine_config,
    build_proxy_context_and_journal,
    check_store_usable_at_start,
    import_cassette_dir_at_start,
)
from llmproxy.mitm.slim_mitmproxy import QuicClassStub, QuicModuleStub
from llmproxy.protocol import Exhausted, Mode
from llmproxy.settings import load

UNUSED = (
    "flask", "ldap3", "aioquic", "service_identity", "pyparsing.core", "ruamel.yaml.main", "unittest", "mitmproxy.addons.tlsconfig",
)  # fmt: skip


# the package runs its own code when something is wanted that it would have brought; then it is an ordinary module
ALL_ADDONS = """
import llmproxy.mitm, sys
from mitmproxy.addons import core, default_addons
import mitmproxy.addons
assert core is sys.modules["mitmproxy.addons.core"]
assert type(mitmproxy.addons) is type(sys)
print(len(default_addons()) > 20, "mitmproxy.addons.onboarding" in sys.modules)
"""
YAML = """
import llmproxy.mitm
from mitmproxy import options, optmanager
given = options.Options()
optmanager.load(given, "listen_port: 4711")
print(given.listen_port)
"""
# by the real parser: words in quotes are one, and lose them
COMMAND = """
import llmproxy.mitm
from mitmproxy import command, command_lexer
print(command.unquote("'a b'"), command.unquote is command_lexer.unquote)
print(*command_lexer.expr.parse_string("view.flows 'a b'", parse_all=True), type(command_lexer).__name__)
"""
# in somebody's mitmdump everything is its own, QUIC too
MITMPROXY_FIRST = """
import mitmproxy.tools.main, mitmproxy.tools.dump, sys
before = {name: id(module) for name, module in sys.modules.items() if name.startswith(("mitmproxy", "ruamel"))}
import llmproxy.mitm.addon
from llmproxy.mitm.slim_mitmproxy import slim_mitmproxy
print(slim_mitmproxy(), all(id(sys.modules[name]) == one for name, one in before.items()), "aioquic.tls" in sys.modules)
"""
# the extra may be missing: then the import that needs it says so
NO_MITMPROXY = """
import sys
sys.modules["mitmproxy"] = None
from llmproxy.mitm.slim_mitmproxy import slim_mitmproxy
print(slim_mitmproxy(), "mitmproxy.addons" in sys.modules)
"""
IMPORTS = f"import llmproxy.mitm.serve, sys; print(*[name for name in {UNUSED!r} if name in sys.modules])"
HAS = "import llmproxy.mitm, mitmproxy.addons as a; print(hasattr(a, {!r}))"


PRINTED = {
    "a server imports nothing that it never uses": (IMPORTS, ""),
    "who asks for all addons gets them": (ALL_ADDONS, "True True"),
    "yaml is the real one when it is used": (YAML, "4711"),
    "a command of mitmproxy's is parsed when one is called": (COMMAND, "a b False view.flows 'a b' module"),
    "what is not there is not invented": (HAS.format("nothing_of_the_kind"), "False"),
    "nor what hides its name": (HAS.format("__wrapped__"), "False"),
    "without mitmproxy nothing is put anywhere": (NO_MITMPROXY, "False False"),
}
FIRST = pytest.param(MITMPROXY_FIRST, "False True True", marks=pytest.mark.slow)


@pytest.mark.parametrize(("code", "printed"), [*PRINTED.values(), FIRST], ids=[*PRINTED, "mitmproxy first"])
def test_what_is_not_used_is_put_off_and_is_the_real_one_when_it_is(code: str, printed: str) -> None:
    """Neither addons nor QUIC, YAML or the console's parser come with our server; a package that is put off has no attributes of its own."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.split()) == (0, printed.split()), done.stderr


def test_an_absent_class_has_no_instances() -> None:
    """It can be named and asked about, and says what it is when somebody wants to make one."""
    module = QuicModuleStub("mitmproxy.proxy.layers.quic")
    quic = module.ClientQuicLayer
    assert quic is module.ClientQuicLayer
    assert isinstance(quic, type)
    assert issubclass(quic, QuicClassStub)
    assert not isinstance(object(), quic)
    with pytest.raises(RuntimeError, match=r"ClientQuicLayer.*without QUIC"):
        quic()


def ignore(_outcome: Call) -> None:
    """Hear nothing."""


def test_every_setting_reaches_the_engine(tmp_path: Path) -> None:
    flags = {
        "mode": "auto", "cassette": "c", "speed": "2", "exhausted": "miss", "miss_status": "503", "max_request": "1234",
        "store": str(tmp_path / "s.db"), "upstream": ["x=http://127.0.0.1:1/v1"],
    }  # fmt: skip
    config = build_engine_config(load(flags, {}, tmp_path).settings)
    assert (config.mode, config.cassette, config.speed, config.exhausted) == (Mode.AUTO, "c", 2.0, Exhausted.MISS)
    assert (config.miss_status, config.max_request, config.store) == (503, 1234, tmp_path / "s.db")
    assert config.upstreams == {"x": "http://127.0.0.1:1/v1"}


def test_a_store_that_cannot_be_used_leaves_nothing_open(tmp_path: Path) -> None:
    """The error comes out, the journal is closed."""
    (tmp_path / "x.db").write_text("no store")
    with pytest.raises(CassetteCorrupt):
        build_proxy_context_and_journal(load({"store": str(tmp_path / "x.db")}, {}, tmp_path), ignore)


def test_a_folder_of_cassettes_that_is_not_there_is_said(tmp_path: Path) -> None:
    """In replay a typo would only give misses with the wrong advice; a recording makes the folder."""
    missing = tmp_path / "nowhere"
    with pytest.raises(CassetteNotFound, match="nowhere"):
        import_cassette_dir_at_start(EngineConfig(cassette_dir=missing, store=tmp_path / "x.db"))
    assert (
        import_cassette_dir_at_start(EngineConfig(mode=Mode.RECORD, cassette_dir=missing, store=tmp_path / "x.db"))
        == []
    )
    assert (
        import_cassette_dir_at_start(EngineConfig(allow_live=True, cassette_dir=missing, store=tmp_path / "x.db")) == []
    )


def test_nothing_is_written_beside_a_store_that_cannot_be_used(tmp_path: Path) -> None:
    """A foreign file is refused before the journal is made; a missing folder is made for a recording."""
    foreign = tmp_path / "notes.txt"
    foreign.write_text("hello")
    with pytest.raises(CassetteCorrupt):
        check_store_usable_at_start(EngineConfig(store=foreign))
    assert list(tmp_path.iterdir()) == [foreign]
    check_store_usable_at_start(EngineConfig(mode=Mode.RECORD, store=tmp_path / "new" / "x.db"))
    assert (tmp_path / "new").is_dir()
