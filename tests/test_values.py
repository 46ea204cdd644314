"""Readers of single values; what `load` makes of them is tested with the settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.parsers import (
    parse_path_setting_refusing_urls,
    read_host,
    read_speed,
    read_truth,
    read_upstreams,
    read_wait,
)


def test_a_boolean_is_no_speed_and_a_number_no_boolean() -> None:
    """TOML's types are not mixed up."""
    with pytest.raises(ValueError, match="not a speed"):
        read_speed(True)
    with pytest.raises(ValueError, match="not one of"):
        read_truth(2)


def test_addresses_of_both_families_are_hosts() -> None:
    """IPv6 comes with or without brackets."""
    found = [read_host(text) for text in ("::1", "[::1]", "0.0.0.0", "Localhost")]
    assert found == ["::1", "[::1]", "0.0.0.0", "localhost"]


def test_an_upstream_may_have_a_path_and_loses_its_last_slash() -> None:
    """Two spellings of one base URL are one."""
    assert read_upstreams({"Local": "http://h:1/a/b/"}) == {"local": "http://h:1/a/b"}


@pytest.mark.parametrize(
    "typed", ["postgresql://me:s3cret@db/x", "postgresql:/me:s3cret@db/x", "s3://b/s3cret", "a+b:/"]
)
def test_a_url_is_no_path_and_is_not_repeated(typed: str) -> None:
    """A folder would have the password in its name; a `Path` of it has lost a slash."""
    with pytest.raises(ValueError, match="URL") as caught:
        parse_path_setting_refusing_urls(typed)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("typed", ["llmproxy.db", "C:/x/y.db", "./odd:/x.db", "a b:c"])
def test_what_only_looks_like_a_url_is_a_path(typed: str) -> None:
    """Drives of Windows have one letter."""
    assert parse_path_setting_refusing_urls(typed) == Path(typed)


@pytest.mark.parametrize("typed", ["-1", "3601", "nan", "inf", "soon", True, None])
def test_time_to_wait_is_some_seconds(typed: object) -> None:
    """Nothing negative, absurd or else than a number; the error repeats it and says what would do."""
    assert read_wait("0.5") == 0.5
    with pytest.raises(ValueError, match="seconds, from 0 to 3600"):
        read_wait(typed)
