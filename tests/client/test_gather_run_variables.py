"""What is found out about a child before it starts."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from llmproxy.client.child_env import find_zone_with_other_date, gather_run_variables, parse_var_option_dicts
from llmproxy.core.bindings import parse_run_variable
from llmproxy.errors import SettingsError


def _named(found: list[dict[str, str]]) -> dict[str, dict[str, str]]:
    for each in found:
        parse_run_variable(**each)
    return {each["name"]: each for each in found}


def test_a_child_has_a_folder_a_home_and_a_day(tmp_path: Path) -> None:
    """Links are known by both names; PWD says how the shell calls the folder."""
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    found = _named(
        gather_run_variables({"HOME": "/users/ann", "PWD": str(link), "TMPDIR": "/scratch", "USER": "ann"}, real)
    )
    assert found["cwd"] == {"name": "cwd", "value": str(link), "other": os.path.realpath(real)}
    assert found["home"]["value"] == "/users/ann"
    assert found["tmp"]["value"] == "/scratch"
    assert found["user"]["value"] == "ann"
    assert _named(gather_run_variables({"PWD": "/nowhere"}, real))["cwd"]["value"] == str(real)


@pytest.mark.parametrize("home", ["/", "//", "/..", "///", ""])
def test_the_root_is_no_home(tmp_path: Path, home: str) -> None:
    """However it is written: a container's user may have none."""
    found = _named(gather_run_variables({"HOME": home, "TMPDIR": "//"}, tmp_path))
    assert "tmp" not in found
    assert home == "" or "home" not in found


def test_the_day_is_the_local_one_and_that_of_utc(tmp_path: Path) -> None:
    now = datetime(2026, 11, 22, 12, 0, tzinfo=timezone(timedelta(hours=5)))
    day = _named(gather_run_variables({}, tmp_path, now))["date"]
    assert day["value"] == now.astimezone().strftime("%Y-%m-%d")
    day = _named(gather_run_variables({}, tmp_path, datetime(2026, 11, 22, 23, 59, tzinfo=UTC)))["date"]
    assert "2026-11-22" in (day["value"], day.get("other"))


def test_the_day_is_that_of_the_childs_time_zone(tmp_path: Path) -> None:
    """TZ counts as it is handed in; one that nobody knows does not."""
    now = datetime(2026, 11, 22, 13, 0, tzinfo=UTC)
    there = _named(gather_run_variables({"TZ": "Pacific/Kiritimati"}, tmp_path, now))["date"]
    assert there == {"name": "date", "value": "2026-11-23", "other": "2026-11-22"}
    assert _named(gather_run_variables({"TZ": "nowhere/at-all"}, tmp_path, now))["date"]["value"]


@pytest.mark.parametrize("hour", [0, 9, 10, 11, 12, 13, 23])
def test_somewhere_it_is_another_day(hour: int, tmp_path: Path) -> None:
    """Whatever the hour is, and before or after the day that is given."""
    now = datetime(2026, 11, 22, hour, 30, tzinfo=UTC)
    for day in ("2026-11-21", "2026-11-22", "2026-11-23"):
        zone = find_zone_with_other_date(day, now)
        assert zone
        assert _named(gather_run_variables({"TZ": zone}, tmp_path, now))["date"]["value"] != day


def test_git_is_asked_where_it_is_wanted(tmp_path: Path) -> None:
    """Branch, status and commits; nothing in a folder without it."""
    assert not any(name.startswith("git") for name in _named(gather_run_variables({}, tmp_path, git=True)))
    for words in (
        ["init", "-q", "-b", "topic", "."],
        ["-c", "user.name=a", "-c", "user.email=b@c", "commit", "-qm", "one", "--allow-empty"],
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    found = _named(gather_run_variables({}, tmp_path, git=True))
    assert (found["git_branch"]["value"], found["git_status"]["value"]) == ("topic", "(clean)")
    assert found["git_commits"]["value"].endswith(" one")
    named = {"GIT_AUTHOR_NAME": "Ann Smith", "GIT_AUTHOR_EMAIL": "ann@example.com"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in named.items():
            patch.setenv(name, value)
        found = _named(gather_run_variables({}, tmp_path, git=True))
    assert found["git_user"]["value"] == "Ann Smith <ann@example.com>"
    (tmp_path / "new").write_text("x")
    assert _named(gather_run_variables({}, tmp_path, git=True))["git_status"]["value"] == "?? new"
    assert not any(name.startswith("git") for name in _named(gather_run_variables({}, tmp_path)))


def test_what_was_typed_is_a_name_and_a_value() -> None:
    """A value may hold an equals sign; a name alone is an error."""
    assert parse_var_option_dicts(["a=b=c"]) == [{"name": "a", "value": "b=c"}]
    for wrong in ("a", "=b", "a="):
        with pytest.raises(SettingsError):
            parse_var_option_dicts([wrong])
