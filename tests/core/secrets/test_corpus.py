"""Code, templates, paths and names of models stay as they are: a sample of the corpus.

The whole: `scripts/lab/secrets-corpus`.
"""

from __future__ import annotations

from .corpus import find_changes, list_files

SAMPLE = 400
"""Files, by a hash of their names: some seconds."""


def test_files_of_others_are_not_damaged() -> None:
    """Of the standard library, of installed packages and recorded traffic only keys change that are named."""
    files = list_files()
    assert [(str(path), found) for path in files[:SAMPLE] for found in find_changes(path)] == []
    assert len(files) > 2 * SAMPLE
