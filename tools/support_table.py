#!/usr/bin/env python3
"""Writes docs/support.md from what the command says of its kernels: support_table.py [--check] TAMIS [DOCUMENT]

TAMIS is the command of a build with CUDA: a build without it does not know the kernels of the device, and is refused.
With --check nothing is written: exit 1, and the sections by name, where the document says anything else. There a build
without CUDA is taken too, and the section of the device is passed over.
"""
import argparse
import json
import os
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
DEVICE = "cuda"  # the backend a build may lack
BACKENDS = (("reference", "The judge of all others."), ("cpu", "The widest one that the processor has is taken."),
            (DEVICE, "Of builds with CUDA, on devices of the architecture."))
COLUMNS = ("kernel", "computes", "dtypes", "`D`", "`Dv`", "group", "pages", "contiguous", "quantized", "dropout",
           "architecture")
INTRO = """# Support

What each kernel takes. Written by `tools/support_table.py` from `tamis kernels --json`; a test compares the two, so edit
`src/kernels/registry.cpp` and the like, not this page. Anything outside these limits is `unsupported`, or another path
with a reason ([semantics.md](semantics.md#10-errors)). `tamis kernels --model config.json` says which kernel serves the
shapes of a model ([cli.md](cli.md)).

`D`, `Dv`: head sizes. group: query heads a KV head. pages: what page sizes are multiples of. dtypes: of q, K and V as
stored; I8, the F8 ones and U8 (int4) hold quantized K and V.
"""


def ask(tamis, command):
    done = subprocess.run([tamis, command, "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def span(limits):
    low, high = limits["min"], limits["max"]
    if high is None:
        return "any" if low == 1 else f"from {low}"
    return str(low) if low == high else f"{low} to {high}"


def head_size(limits, which):
    step = limits["head_dim_multiple_of"]
    return span(limits[which]) + ("" if step == 1 else f", multiples of {step}")


def architecture(arch):
    if arch is None:
        return "-"
    if arch["max"] is None:
        return f"sm_{arch['min']} and later"
    return f"sm_{arch['min']}" if arch["min"] == arch["max"] else f"sm_{arch['min']} to sm_{arch['max']}"


def yes(value):
    return "yes" if value else "no"


def row(kernel):
    limits = kernel["limits"]
    pages = limits["page_multiple_of"]
    return (f"`{kernel['name']}`", kernel["op"], " ".join(limits["dtypes"]), head_size(limits, "head_dim"),
            head_size(limits, "v_head_dim"), span(limits["group"]), "any size" if pages == 1 else str(pages),
            yes(limits["contiguous"]), yes(limits["quantized"]), yes(limits["dropout"]), architecture(kernel["arch"]))


def table(kernels):
    lines = [COLUMNS, ("---",) * len(COLUMNS), *map(row, kernels)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def render(kernels):
    parts = [INTRO]
    for backend, what in BACKENDS:
        of_backend = [k for k in kernels if k["backend"] == backend]
        notes = "".join(f"* `{k['name']}`: {k['note']}\n" for k in of_backend)
        body = table(of_backend) + "\n" + notes if of_backend else "No kernel yet.\n"
        parts.append(f"## {backend}\n\n{what}\n\n{body}")
    return "\n".join(parts)


def sections(text):
    """Heading -> text below it; the text above the first heading stands under ""."""
    found, name = {"": ""}, ""
    for line in text.splitlines():
        if line.startswith("## "):
            name = line[3:]
            found[name] = ""
        else:
            found[name] += line.rstrip() + "\n"
    return {name: body.strip() for name, body in found.items()}


def differing(have, want, passed_over=()):
    """Names of the sections in which two documents differ, in order; "the beginning" is what stands above them."""
    have, want = sections(have), sections(want)
    names = list(want) + [name for name in have if name not in want]
    return [name or "the beginning" for name in names
            if name not in passed_over and have.get(name) != want.get(name)]


def main():
    parser = argparse.ArgumentParser(description="write or check docs/support.md")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("tamis", metavar="TAMIS")
    parser.add_argument("document", nargs="?", default=os.path.join(ROOT, "docs", "support.md"))
    options = parser.parse_args()
    has_device = ask(options.tamis, "version")["built_with_cuda"]
    text = render(ask(options.tamis, "kernels")["kernels"])
    if not options.check:
        if not has_device:
            sys.exit("this build has no CUDA and would leave its kernels out")
        with open(options.document, "w", encoding="utf-8") as f:
            f.write(text)
        return 0
    try:
        with open(options.document, encoding="utf-8") as f:
            have = f.read()
    except FileNotFoundError:
        have = ""
    wrong = differing(have, text, () if has_device else (DEVICE,))
    for name in wrong:
        print(f"{os.path.relpath(options.document, ROOT)}: {name} is out of date: run tools/support_table.py {options.tamis}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
