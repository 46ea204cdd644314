"""Does a suite use the proxy?"""

from __future__ import annotations

from pathlib import Path

import pytest

from llmproxy.client.detect import suite_files, suite_uses

FILES, NORECURSE = ("test_*.py", "*_test.py"), (".*", "node_modules")


@pytest.mark.parametrize(
    ("text", "uses"),
    [
        ("def test_a(llmproxy):", True),
        ("def test_a(tmp_path, llmproxy: Walk) -> None:", True),
        ("def test_a(\n    llmproxy,\n):", True),
        ("@pytest.mark.llmproxy(mode='auto')", True),
        ('pytestmark = pytest.mark.usefixtures("llmproxy")', True),
        ("import llmproxy\nfrom llmproxy.core import key", False),
        ("# llmproxy is great", False),
    ],
)
def test_a_use_is_a_parameter_a_marker_or_a_name(tmp_path: Path, text: str, uses: bool) -> None:
    """To import our package is not to ask for the fixture."""
    (tmp_path / "test_a.py").write_text(text)
    assert suite_uses([tmp_path], tmp_path, FILES, NORECURSE) is uses


def test_only_what_pytest_would_import_is_read(tmp_path: Path) -> None:
    """Environments and packages of others can be huge."""
    for name in (
        "a/test_x.py",
        "a/conftest.py",
        "a/other.py",
        "node_modules/test_y.py",
        ".venv/test_z.py",
        "env/test_e.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    found = {path.relative_to(tmp_path).as_posix() for path in suite_files([tmp_path], tmp_path, FILES, NORECURSE)}
    assert found == {"conftest.py", "a/test_x.py", "a/conftest.py"}


def test_a_named_file_brings_the_conftests_above_it(tmp_path: Path) -> None:
    """They may hold the fixture that asks for us."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "conftest.py").write_text("def pytest_thing(): ...\ndef agent(llmproxy): ...")
    (tmp_path / "a" / "b" / "test_x.py").write_text("")
    assert suite_uses([tmp_path / "a" / "b" / "test_x.py"], tmp_path, FILES, NORECURSE)
    assert not suite_uses([tmp_path / "a" / "b" / "test_x.py"], tmp_path / "a", FILES, NORECURSE)
