"""Every C++ file is laid out as .clang-format says, by the pinned version of the formatter (tests/requirements.txt)."""
import pathlib
import subprocess
import sys

from tidy_test import ROOT, tracked_files

CLANG_FORMAT = pathlib.Path(sys.executable).with_name("clang-format")
FILES = [name for name in tracked_files() if name.endswith((".cc", ".h"))]


def test_the_layout_is_the_formatters():
    assert CLANG_FORMAT.exists(), "tools/setup.sh test installs the formatter beside this Python"
    done = subprocess.run([str(CLANG_FORMAT), "--dry-run", *FILES], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    unlike = sorted({line.split(":")[0] for line in done.stderr.splitlines() if "clang-format-violations" in line})
    assert not unlike, "clang-format -i " + " ".join(unlike)
