"""The rules of the tree that a compiler does not check: folder order, forbidden calls, file length."""
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
FOLDERS = "base text tensor kernels transport kv ep balance model engine cluster sim serve cli".split()
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
SOURCES = sorted(p for p in SRC.rglob("*") if p.suffix in (".cc", ".h"))

# The few back-end files outside base/, serve/ and cli/ that may touch a clock, a socket, a file or a thread.
BACK_END_FILES = {
    "tensor/model_source.cc": "maps checkpoint files",
    "tensor/arena.cc": "asks the system for huge pages",
    "engine/engine.cc": "owns the engine's thread",
    "tensor/safetensors_writer.cc": "writes converted checkpoints",
    "text/text_assets.cc": "reads tokenizer files",
    "model/output_folder.cc": "makes the folder of a converted checkpoint",
}
FREE_FOLDERS = {"base", "serve", "cli"}
FORBIDDEN = {
    r"\bstd::(?:this_thread|thread|jthread|async)\b": "threads",
    r"\b(?:steady_clock|system_clock|high_resolution_clock)::now\b": "the clock",
    r"\b(?:gettimeofday|clock_gettime|time)\s*\(\s*(?:NULL|nullptr|&|CLOCK)": "the clock",
    r"\b(?:rand|srand|random_device|mt19937)\b": "random numbers",
    r"\bstd::(?:ifstream|ofstream|fstream|filesystem)\b": "files",
    r"(?<![A-Za-z0-9_>])(?:fopen|::open|::socket|::connect|mmap)\s*\(": "files or sockets",
    r"\bstd::shuffle\b": "std::shuffle (differs between libraries)",
}


def rel(path):
    return path.relative_to(SRC).as_posix()


def tracked_files():
    """Git's list; without git, or where it will not read the folder, all files outside build/."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
        return [name for name in listed.stdout.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        names = (p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*") if p.is_file())
        return [name for name in names if not name.startswith((".git/", "build/", "bridge/target/"))]


def is_test(path):
    return re.search(r"_(test|bench|fuzz)\.cc$", path.name) or path.stem.endswith("_testing") or path.name.startswith("test_")


def code_lines(path):
    """Lines without comments and string literals."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        yield number, re.sub(r'"(?:\\.|[^"\\])*"', '""', line).split("//")[0]



def invariants(header):
    """Names in a header's list of invariants: "// * name: ..." or "//   name   ..."."""
    listed = re.search(r"^//.*\bInvariants\b.*\n((?://.*\n)+)", header.read_text(), re.M)
    return re.findall(r"^//(?: \* |   )([a-z][a-z0-9_]*)(?::|  +\S|$)", listed[1], re.M) if listed else []


@pytest.mark.parametrize("folder", ["balance", "engine", "ep"])
def test_every_named_invariant_is_checked_under_its_name(folder):
    """In a message or the name of a test of the same folder, so that a failure says which rule broke."""
    said, headers = set(), {p: invariants(p) for p in SRC.glob(f"{folder}/*.h") if "nvariants, by name" in p.read_text()}
    for test in SRC.glob(f"{folder}/*_test.cc"):
        text = test.read_text()
        for literal in re.findall(r'"(?:\\.|[^"\\\n])*"', text):
            said.update(re.findall(r"\w+", literal))
        said.update(re.findall(r"\bTEST\w*\(\w+,\s*(\w+)\)", text))
    assert headers and all(headers.values()), "a list of invariants without names"
    missing = [f"{rel(header)}: {name}" for header, names in headers.items() for name in names if name not in said]
    assert not missing, missing


def test_toml_comes_in_one_form():
    """With and without exceptions toml++ shares symbols: two forms in one binary crash on a torn file."""
    assert [rel(p) for p in SOURCES if "#include <toml++" in p.read_text()] == ["base/toml.h"]


def test_a_folder_includes_only_folders_above_it():
    wrong = []
    for path in SOURCES:
        folder = rel(path).split("/")[0]
        for match in re.finditer(r'^#include "([^"]+)"', path.read_text(), re.M):
            target = match.group(1).split("/")[0]
            if target in FOLDERS and FOLDERS.index(target) > FOLDERS.index(folder):
                wrong.append(f"{rel(path)} includes {match.group(1)}")
    assert not wrong, "\n".join(wrong)


def test_every_file_lies_in_a_known_folder():
    unknown = [rel(p) for p in SOURCES if rel(p).split("/")[0] not in FOLDERS]
    assert not unknown, unknown


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_outside_the_wiring_no_clock_random_thread_socket_or_file(pattern):
    wrong = []
    for path in SOURCES:
        name = rel(path)
        if name.split("/")[0] in FREE_FOLDERS or name in BACK_END_FILES or is_test(path):
            continue
        for number, line in code_lines(path):
            if re.search(pattern, line):
                wrong.append(f"src/{name}:{number}: {FORBIDDEN[pattern]}: {line.strip()}")
    assert not wrong, "\n".join(wrong)


def test_back_end_list_names_only_files_that_exist():
    gone = [name for name in BACK_END_FILES if not (SRC / name).exists()]
    assert not gone, gone


def test_every_header_is_included_somewhere():
    text = {p: p.read_text() for p in SOURCES}
    dead = []
    for header in (p for p in SOURCES if p.suffix == ".h"):
        needle = f'#include "{rel(header)}"'
        if not any(needle in body for p, body in text.items() if p != header):
            dead.append(rel(header))
    assert not dead, dead


def test_files_fit_the_house_limit():
    long = [f"src/{rel(p)}: {n} lines" for p in SOURCES if (n := len(p.read_text().splitlines())) > FILE_LINES_MAX]
    assert not long, "\n".join(long)


def bodies(path):
    """(first line, last line) of every function, and of every block in one, whose text begins in column 0 or 2. Goes by the
    formatter's layout: a closing brace stands below the first word of what it closes."""
    lines = path.read_text().splitlines()
    for indent in ("", "  "):
        start = None
        for number, line in enumerate(lines, 1):
            if not line.startswith(indent) or line[len(indent):len(indent) + 1] in ("", " ", "/"):
                continue
            if line.startswith(indent + "}"):
                if start:
                    yield start, number
                start = None
            elif "(" in line and not line.endswith((";", "}")) and not re.match(r"\s*(class|struct|namespace|enum)\b", line):
                start = number
            elif line.endswith((";", "}")):
                start = None


def test_functions_fit_on_a_screen():
    long = [f"src/{rel(p)}:{first}: {last - first + 1} lines" for p in SOURCES for first, last in bodies(p)
            if last - first + 1 > FUNCTION_LINES_MAX]
    assert not long, "\n".join(long)


def test_functions_are_found():
    """The check above sees what it is meant to see."""
    found = [last - first + 1 for p in SOURCES for first, last in bodies(p)]
    assert len(found) > 2000 and max(found) > 50, (len(found), max(found))


def test_every_file_says_what_it_is_for():
    silent = [rel(p) for p in SOURCES if not p.read_text().lstrip().startswith("//")]
    assert not silent, silent


def test_no_unfinished_marks_and_no_machine_paths():
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|/work/|/root/")
    wrong = []
    for name in tracked_files():
        path = ROOT / name
        if path.suffix not in (".cc", ".h", ".py", ".sh", ".rs", ".cmake", ".toml", ".md", ".txt") \
                or path == pathlib.Path(__file__).resolve() or not path.is_file():
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if marks.search(line):
                wrong.append(f"{name}:{number}: {line.strip()[:100]}")
    assert not wrong, "\n".join(wrong)
