"""A file that is no YAML, or not yet text: what is wrong with it in words that help, for PyYAML's speak of tokens and indicators."""

from __future__ import annotations

import yaml

from llmproxy.suite.yaml.places import Problems, YamlPlace

_EXPLAINED = (
    ("mapping values are not allowed", "a text that holds `: ` needs quotes around it"),
    ("could not find expected ':'", "a key needs a colon and a space after it; a text over several lines needs quotes"),
    ("did not find expected key", "check the indentation of this line and the one before, and the quotes"),
    ("did not find expected '-' indicator", "check the indentation of this line and the one before"),
    ("did not find expected ',' or", "a bracket or a comma is missing, or a text needs quotes"),
    ("cannot start any token", "a text that begins with @, `, % or a tab needs quotes around it"),
    ("found unexpected end of stream", "a quote is opened and never closed"),
    ("control characters", "the file holds a character that YAML forbids"),
)


def too_large(size: int, name: str, limit: int, problems: Problems) -> None:
    """Refuse a file for its size."""
    problems.add(
        YamlPlace(name, 1, 1),
        f"the file has {size / 1e6:.1f} MB, and at most {limit / 1e6:.1f} MB are read",
        "split it: `scenarios` may name files and globs",
    )


def decode_text(content: bytes | str, name: str, problems: Problems) -> str | None:
    """Return the text of a file, UTF-8 or UTF-16 with its mark; None (and a problem) if it is neither."""
    if isinstance(content, str):
        return content.removeprefix("\ufeff")
    codec = "utf-16" if content[:2] in {b"\xff\xfe", b"\xfe\xff"} else "utf-8-sig"
    try:
        return content.decode(codec)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        problems.add(YamlPlace(name, line, column), "the file is not UTF-8 text", "save it as UTF-8")
        return None


def explain(error: yaml.MarkedYAMLError, text: str, name: str, problems: Problems) -> None:
    """Say in plain words where and why a text is no YAML."""
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark else (0, 0)
    lines = text.splitlines()
    for number in (line, line - 1):
        written = lines[number] if 0 <= number < len(lines) else ""
        blank = written[: len(written) - len(written.lstrip())]
        if "\t" in blank:
            place = YamlPlace(name, number + 1, blank.index("\t") + 1)
            problems.add(
                place, "this line is indented with a tab, and YAML allows only spaces", "replace the tab by spaces"
            )
            return
    said = error.problem or str(error)
    hint = next((hint for part, hint in _EXPLAINED if part in said), "")
    begun = error.context_mark.line + 1 if error.context_mark and error.context_mark.line != line else None
    also = f" ({error.context}, which begins in line {begun})" if begun and error.context else ""
    problems.add(YamlPlace(name, line + 1, column + 1), f"this is no YAML: {said}{also}", hint)
