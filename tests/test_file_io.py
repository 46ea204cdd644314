"""Files that somebody names: whole, bounded, and no member of JSON unseen."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from llmproxy.file_io import (
    build_dict_without_duplicates,
    read_bounded_bytes,
    read_bounded_text,
    replace_file,
)


def test_a_file_is_read_whole_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbf12345")
    assert read_bounded_bytes(path, 8) == b"\xef\xbb\xbf12345"
    assert read_bounded_text(path) == "12345"
    with pytest.raises(OSError, match="it has over 7 bytes, and no more are read"):
        read_bounded_bytes(path, 7)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_what_has_no_size_is_read_up_to_the_same_bound(tmp_path: Path) -> None:
    """A shell's `<(...)` is a file like others; a device has no end."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_bytes, args=(b"[1]",)).start()
    assert read_bounded_bytes(pipe) == b"[1]"
    with pytest.raises(OSError, match="over 1,000 bytes"):
        read_bounded_bytes(Path("/dev/zero"), 1000)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '[{"b": {"a": 1, "a": 1}}]'])
def test_a_member_that_stands_twice_is_refused(text: str) -> None:
    """The last one would win, and nobody would see it."""
    with pytest.raises(ValueError, match="'a' stands twice in one object"):
        json.loads(text, object_pairs_hook=build_dict_without_duplicates)


def test_a_replaced_file_is_never_open_to_more_than_before_it_was(tmp_path: Path) -> None:
    """Nor while it is written; a new one has what the umask leaves, which stays as it is."""
    path, mask = tmp_path / "file", os.umask(0o027)
    try:
        for known, wanted in ((None, 0o640), (0o600, 0o600), (0o644, 0o644)):
            path.unlink(missing_ok=True)
            if known is not None:
                path.touch()
                path.chmod(known)
            with replace_file(path) as file:
                (begun,) = [each for each in tmp_path.iterdir() if each != path]
                assert begun.stat().st_mode & 0o777 & ~wanted == 0
                file.write("all")
            assert (path.stat().st_mode & 0o777, path.read_text()) == (wanted, "all")
    finally:
        assert os.umask(mask) == 0o027
