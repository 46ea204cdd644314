"""The certificate authority's files: made once, safe, and never silently broken."""

from __future__ import annotations

import datetime as dt
import os
import re
import ssl
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import certifi
import pytest

from llmproxy.errors import MachineError
from llmproxy.mitm.interception import CERTIFICATE, KEY, prepare_certificate_authority, prepare_or_create_temporary_ca
from llmproxy.protocol import BUNDLES, NODE_CA, NODE_PROXY, PROXIES
from tests.support.process import clean_env
from tests.support.proxy import proxy

LATER = dt.datetime.now(dt.UTC) + dt.timedelta(days=40 * 365)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "share" / "llmproxy"


def modes(folder: Path) -> dict[str, str]:
    """Return the permissions of everything in a folder that is not meant for all."""
    found = {path.name: f"{path.stat().st_mode & 0o777:o}" for path in (folder, *folder.iterdir())}
    return {name: mode for name, mode in found.items() if mode != "644"}


def test_it_is_made_once(folder: Path) -> None:
    """The second start finds what the first made, and says nothing."""
    first = prepare_certificate_authority(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    second = prepare_certificate_authority(folder)
    assert (first, second.notes) == (second, ())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_only_we_can_read_the_key(folder: Path) -> None:
    """The folder is 0700 and the key 0600, whatever the umask says."""
    before = os.umask(0)
    try:
        prepare_certificate_authority(folder)
    finally:
        os.umask(before)
    assert modes(folder) == {"llmproxy": "700", KEY: "600"}


def test_what_was_open_to_others_is_closed(folder: Path) -> None:
    """And said, since somebody may have read it."""
    prepare_certificate_authority(folder)
    folder.chmod(0o755)
    (folder / KEY).chmod(0o644)
    notes = prepare_certificate_authority(folder).notes
    assert modes(folder) == {"llmproxy": "700", KEY: "600"}
    assert [note.partition(" was open")[0] for note in notes] == [str(folder), str(folder / KEY)]


def test_the_bundle_holds_ours_and_everybody_else_s(folder: Path) -> None:
    """Variables that replace what is trusted must not cut off the rest of the world."""
    made = prepare_certificate_authority(folder)
    ours, all_of_them, theirs = (ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) for _ in range(3))
    ours.load_verify_locations(made.ca_certificate_path)
    all_of_them.load_verify_locations(made.ca_bundle)
    theirs.load_verify_locations(certifi.where())
    assert len(ours.get_ca_certs()) == 1
    assert len(all_of_them.get_ca_certs()) == len(theirs.get_ca_certs()) + 1


@pytest.mark.parametrize("gone", [CERTIFICATE, "mitmproxy-ca-bundle.pem", "mitmproxy-dhparam.pem"])
def test_what_follows_from_the_key_is_written_again(folder: Path, gone: str) -> None:
    """A removed or damaged certificate or bundle is as it was, without a word: the authority is the same."""
    prepare_certificate_authority(folder)
    wanted = (folder / gone).read_bytes()
    (folder / gone).unlink()
    assert prepare_certificate_authority(folder).notes == ()
    (folder / gone).write_bytes(wanted[:40])
    assert prepare_certificate_authority(folder).notes == ()
    assert (folder / gone).read_bytes() == wanted


def test_a_removed_key_means_a_new_authority(folder: Path) -> None:
    """And a note that whoever trusted the old one must trust it anew."""
    old = prepare_certificate_authority(folder).ca_certificate_path.read_bytes()
    (folder / KEY).unlink()
    again = prepare_certificate_authority(folder)
    assert again.ca_certificate_path.read_bytes() != old
    assert "trust it anew" in " ".join(again.notes)
    assert again.ca_bundle.read_text("utf-8").endswith(again.ca_certificate_path.read_text("utf-8"))


def test_an_expired_authority_is_replaced(folder: Path) -> None:
    """No client would accept it; the old key is kept beside it, and a note says so."""
    key = (prepare_certificate_authority(folder), (folder / KEY).read_bytes())[1]
    assert "expired on" in prepare_certificate_authority(folder, LATER - dt.timedelta(days=1)).notes[0]
    assert (folder / f"{KEY}.old").read_bytes() == key
    assert (folder / KEY).read_bytes() != key
    assert (folder / f"{KEY}.old").stat().st_mode & 0o077 == 0


def test_a_clock_that_is_wrong_says_so(folder: Path) -> None:
    """An authority from the future counts as little as an expired one."""
    prepare_certificate_authority(folder)
    assert "valid only from" in prepare_certificate_authority(folder, dt.datetime(2001, 1, 1, tzinfo=dt.UTC)).notes[0]


def damage(data: bytes) -> dict[str, bytes]:
    """Return what may have become of the key's file, by what is said about it."""
    key, mark, certificate = data.partition(b"-----BEGIN CERTIFICATE-----")
    return {
        "empty": b"", "cut": data[: len(data) // 2], "key only": key, "certificate only": mark + certificate,
        "text": b"hello",
    }  # fmt: skip


@pytest.mark.parametrize("how", ["empty", "cut", "key only", "certificate only", "text", "other"])
def test_a_damaged_key_is_an_error_and_is_left_alone(folder: Path, tmp_path: Path, how: str) -> None:
    """It may be the user's own; the message names the file and what to type."""
    prepare_certificate_authority(folder)
    data = (folder / KEY).read_bytes()
    if how == "other":
        prepare_certificate_authority(tmp_path / "second")
        other = (tmp_path / "second" / KEY).read_bytes().partition(b"-----BEGIN CERTIFICATE-----")
        broken = data.partition(b"-----BEGIN CERTIFICATE-----")[0] + other[1] + other[2]
    else:
        broken = damage(data)[how]
    (folder / KEY).write_bytes(broken)
    with pytest.raises(MachineError, match="is damaged") as raised:
        prepare_certificate_authority(folder)
    assert str(folder / KEY) in str(raised.value)
    assert "rm '" in str(raised.value)
    assert (folder / KEY).read_bytes() == broken


def test_a_place_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    """A file where the folder should be: what is wrong, and what to set."""
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match="certificate authority") as raised:
        prepare_certificate_authority(tmp_path / "file" / "llmproxy")
    assert "XDG_DATA_HOME" in str(raised.value)


def test_a_proxy_for_base_urls_does_without(tmp_path: Path) -> None:
    """It has an authority for its run, and says why."""
    (tmp_path / "file").write_text("")
    made = prepare_or_create_temporary_ca(tmp_path / "file")
    assert made.ca_certificate_path.is_file()
    assert "for this run alone" in made.notes[0]


def test_proxies_that_start_at_once_share_one(folder: Path) -> None:
    """However many come first, there is one authority, and every one of them has it."""
    with ThreadPoolExecutor(6) as pool:
        made = list(
            pool.map(lambda _: prepare_certificate_authority(folder).ca_certificate_path.read_bytes(), range(6))
        )
    assert set(made) == {(folder / CERTIFICATE).read_bytes()}
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_start_prints_what_to_trust(tmp_path: Path) -> None:
    """`llmproxy start --forward` names the certificate and every variable that clients read; health gives both files."""
    with proxy("replay", tmp_path / "x.db", options=("--forward",), env={"XDG_DATA_HOME": str(tmp_path)}) as px:
        health = px.control("health")
    folder = tmp_path / "llmproxy"
    assert (health["ca"], health["ca_bundle"]) == (str(folder / CERTIFICATE), str(folder / "mitmproxy-ca-bundle.pem"))
    assert f"must trust {health['ca']}\n" in px.stdout
    wanted = dict.fromkeys(BUNDLES, health["ca_bundle"]) | dict.fromkeys(PROXIES, px.url)
    wanted |= {NODE_CA: health["ca"], NODE_PROXY: "1"}
    printed = dict(re.findall(r"([A-Za-z_]+)=([^ \n]+)", px.stdout))
    assert {name: printed.get(name) for name in wanted} == wanted
    assert f'eval "$(llmproxy env --intercept --url {px.url})"' in px.stdout


@pytest.mark.slow
def test_start_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    """A damaged authority ends `start --forward` with 3 and one clear message; by base URL it starts all the same."""
    (tmp_path / "llmproxy").mkdir(mode=0o700)
    (tmp_path / "llmproxy" / KEY).write_text("hello")
    (tmp_path / "llmproxy" / KEY).chmod(0o600)
    env = clean_env({"XDG_DATA_HOME": str(tmp_path)})
    command = [sys.executable, "-m", "llmproxy", "start", "--forward", "--port", "0", "--store", str(tmp_path / "x.db")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert "is damaged" in done.stderr
    assert "Traceback" not in done.stderr
    with proxy("replay", tmp_path / "x.db", env={"XDG_DATA_HOME": str(tmp_path)}) as px:
        assert px.control("health")["ca"] is None
    assert "for this run alone" in px.stdout
