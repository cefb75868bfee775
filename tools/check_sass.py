#!/usr/bin/env python3
"""Checks the machine code of the kernels: check_sass.py [--cuobjdump PATH] FILE...

FILE is an object or a library with device code. No kernel may keep anything in local memory, which is what registers
spill to and arrays indexed at run time fall into; kernels named in NEEDED must have the instructions that they were
written for. Prints a table, then `kernel: reason` for each violation; exit 1 then, and where a kernel of EXPECTED is
not among them. Exit 77 (skipped) where there is no cuobjdump: it is looked for beside nvcc, then on the PATH.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys

# A check that has found nothing to check is not passed.
EXPECTED = ("decode_kernel", "normalize_kernel", "prefill_kernel", "redo_kernel", "schedule_kernel")

# Copies that pass by the registers, matrices out of shared memory, products of matrices. Without any one of them the
# kernel still gives right answers, only slowly.
NEEDED = {"decode_kernel": ("LDGSTS", "LDSM", "HMMA"), "prefill_kernel": ("UTMALDG", "UTMASTG", "HGMMA", "USETMAXREG")}

# Kernels that may use a stack: name as the table shows it -> why.
BETWEEN_TILES = "one or two registers, kept over what is done once a tile or once a row tile"
MAY_USE_STACK = {
    f"prefill_kernel<PrefillConfig<{dtype}, 256, false, 2>>": BETWEEN_TILES for dtype in ("BF16", "F16")}

LOCAL = ("LDL", "STL")

FUNCTION = re.compile(r"^\s*Function\s*:?\s*(\S+?):?\s*$")
ARCH = re.compile(r"^\s*(?:arch = |code for )(sm_\w+)")
USAGE = re.compile(r"(\w+):(\d+)")
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+\{?\s*(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)")


class Kernel:
    """One function of one architecture."""

    def __init__(self, name, arch):
        self.name, self.arch = name, arch
        self.usage = {}  # REG, STACK, SHARED, LOCAL; empty where cuobjdump did not say
        self.opcodes = {}  # without suffixes -> how many

    def is_a(self, kind):
        return re.search(r"(?<![A-Za-z_])" + kind + r"(?![A-Za-z_0-9])|\d" + kind + r"(?=[IEv])", self.name) is not None


def read(usage_text, sass_text):
    """{(arch, symbol): Kernel} of what cuobjdump -res-usage and -sass print."""
    kernels = {}
    for text in (usage_text, sass_text):
        arch = kernel = None
        for line in text.splitlines():
            if match := ARCH.match(line):
                arch, kernel = match[1], None
            elif match := FUNCTION.match(line):
                kernel = kernels.setdefault((arch, match[1]), Kernel(match[1], arch))
            elif kernel is None:
                continue
            elif match := INSTRUCTION.match(line):
                kernel.opcodes[match[1]] = kernel.opcodes.get(match[1], 0) + 1
            elif line.lstrip().startswith("REG:"):
                kernel.usage = {name: int(number) for name, number in USAGE.findall(line)}
    return kernels


def without_arguments(name):
    """Up to the parenthesis that opens the arguments: template arguments may hold casts."""
    depth = 0
    for place, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0 and not name.startswith("(anonymous", place):
            return name[:place]
    return name


def shortened(name):
    """The name as C++ has it, without namespaces, result and arguments."""
    name = re.sub(r"\b\w+::|\(anonymous namespace\)::", "", without_arguments(name).removeprefix("void "))
    return name.replace("> >", ">>")


def rename(kernels):
    """Readable names, where there is a c++filt; the symbols else."""
    kernels = sorted(kernels, key=lambda k: (k.name, k.arch))
    if kernels and (tool := shutil.which("c++filt")):
        names = "".join(kernel.name + "\n" for kernel in kernels)
        plain = subprocess.run([tool], input=names, capture_output=True, text=True, check=True).stdout.splitlines()
        for kernel, name in zip(kernels, plain):
            kernel.name = shortened(name)
    return kernels


def problems_of(kernel):
    if not kernel.usage or not kernel.opcodes:
        yield "cuobjdump does not say " + ("what it uses" if kernel.opcodes else "what it consists of")
        return
    if kernel.name not in MAY_USE_STACK:
        for part in ("STACK", "LOCAL"):
            if kernel.usage.get(part, 0):
                yield f"{kernel.usage[part]} bytes of {part.lower()} memory"
        for opcode in LOCAL:
            if opcode in kernel.opcodes:
                yield f"{kernel.opcodes[opcode]} {opcode}: registers spill, or an array is indexed at run time"
    for kind, opcodes in NEEDED.items():
        for opcode in opcodes:
            if kernel.is_a(kind) and opcode not in kernel.opcodes:
                yield f"no {opcode}"
    # Each product between a WARPGROUP.ARRIVE and a WARPGROUP.DEPBAR of its own: the compiler says so in a note (C7513
    # and its like), and nothing is under way meanwhile.
    if 0 < kernel.opcodes.get("HGMMA", 0) <= kernel.opcodes.get("WARPGROUP", 0):
        yield "each product waits for the one before"


def problems(kernels):
    """All violations, as `kernel: reason`."""
    found = [f"{k.name} ({k.arch}): {reason}" for k in kernels for reason in problems_of(k)]
    found += [f"{kind}: not found" for kind in EXPECTED if not any(k.is_a(kind) for k in kernels)]
    names = {k.name for k in kernels}
    return found + [f"{name}: may use a stack ({why}), but there is no such kernel"
                    for name, why in MAY_USE_STACK.items() if name not in names]


def table(kernels):
    rows = [("kernel", "arch", "registers", "shared", "stack", "instructions")]
    rows += [(k.name, k.arch, *(k.usage.get(part, "?") for part in ("REG", "SHARED", "STACK")), sum(k.opcodes.values()))
             for k in kernels]
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        left = "  ".join(str(cell).ljust(width) for cell, width in zip(row[:2], widths))
        yield left + "".join(str(cell).rjust(width + 2) for cell, width in zip(row[2:], widths[2:]))


def find_cuobjdump():
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    beside = os.path.join(os.path.dirname(os.path.realpath(nvcc)), "cuobjdump")
    return beside if os.access(beside, os.X_OK) else shutil.which("cuobjdump")


def dump(tool, option, file):
    return subprocess.run([tool, option, file], stdout=subprocess.PIPE, text=True, check=True).stdout


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuobjdump", metavar="PATH", help="the program to read device code with")
    parser.add_argument("files", nargs="+", metavar="FILE")
    options = parser.parse_args(arguments)
    tool = options.cuobjdump or find_cuobjdump()
    if not tool:
        print("SKIPPED (no cuobjdump)")
        return 77
    kernels = []
    for file in options.files:
        kernels += read(dump(tool, "-res-usage", file), dump(tool, "-sass", file)).values()
    kernels = rename(kernels)
    for line in table(kernels):
        print(line)
    found = problems(kernels)
    for problem in found:
        print(problem)
    print(f"SASS: {len(kernels)} kernels, {len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
