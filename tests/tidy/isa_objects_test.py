"""No object compiled for an instruction set of its own defines a weak function: the linker could take that copy for
the whole program, and a processor without the instructions would die in code that never asked for them."""
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("FATHOM_BINARY", ROOT / "build/release/fathom")).parent
ISA = re.compile(r"_(avx2|avx512|vnni|bf16)\.cc\.o$")
OBJECTS = sorted(p for p in BUILD.glob("src/CMakeFiles/**/*.cc.o") if ISA.search(p.name))


def symbols(path):
    """[(type letter of nm, name)] of what the object defines."""
    listed = subprocess.run(["nm", "--defined-only", "--demangle", str(path)], capture_output=True, text=True, check=True)
    return [(line.split(None, 2)[1], line.split(None, 2)[2]) for line in listed.stdout.splitlines()]


def test_every_instruction_set_has_objects():
    assert {ISA.search(p.name).group(1) for p in OBJECTS} == {"avx2", "avx512", "vnni", "bf16"}


@pytest.mark.parametrize("path", OBJECTS, ids=lambda p: p.name)
def test_it_defines_no_weak_symbol(path):
    defined = symbols(path)
    assert any(kind == "T" for kind, _ in defined), "nothing is reached from outside"
    weak = [f"{kind} {name}" for kind, name in defined if kind in "WwVvu"]
    assert not weak, "\n".join(weak)
