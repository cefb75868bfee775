#!/usr/bin/env python3
"""Runs what the documents show: readme_commands.py [--done COMMAND]... [DOCUMENT]...

Every fenced block of README.md (or the documents given) that is marked `sh` runs in a fresh shell in the root of the
repository. The line before a block may hold `<!-- skip: reason -->`. --done names a command that has run already,
such as "./dev test": lines that are just that command are left out.

A block marked `python` runs in a fresh interpreter, by what it imports: with torch or transformers that of
build/venv/torch, else that of build/venv/python, which has NumPy alone. `./dev test torch` and `./dev test python` make
them; without a finished one the block is SKIPPED. So it is when it ends well but has printed a line that starts with
`no device`.

One line a block, then a tally; exit 1 on failure.
"""
import argparse
import os
import re
import subprocess
import sys
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
SECONDS = 900  # per block
SKIP = re.compile(r"<!--\s*skip:\s*(.*?)\s*-->")
LANGUAGES = ("sh", "python")
NEEDS_TORCH = re.compile(r"^\s*(import|from)\b[^#\n]*\b(torch|transformers)\b", re.MULTILINE)
NO_DEVICE = re.compile(r"^no device.*", re.MULTILINE)


def blocks_of(text):
    """(line number, language, skip reason or None, lines) of each block that can run."""
    lines = text.splitlines()
    start = None
    for number, line in enumerate(lines):
        if start is None and line.strip().startswith("```"):
            start, language = number, line.strip()[3:]
        elif start is not None and line.strip() == "```":
            skip = SKIP.search(lines[start - 1]) if start else None
            if language in LANGUAGES:
                yield start + 1, language, skip and skip[1], lines[start + 1:number]
            start = None
    if start is not None:
        raise SystemExit(f"line {start + 1}: the block is never closed")


def without_comment(line):
    return re.sub(r"(^|\s)#.*", "", line).strip()


def left_to_run(lines, done):
    """The script of a block without the commands that have run; empty when none is left."""
    lines = [line for line in lines if without_comment(line) not in done]
    return "\n".join(lines) if any(map(without_comment, lines)) else ""


def environment_of(script):
    """The folder in build/venv/ whose interpreter runs a Python block."""
    return "torch" if NEEDS_TORCH.search(script) else "python"


def run(command, script=None):
    """(verdict, what there is to say): passed, failed with the end of the output, or skipped with the reason."""
    try:
        done = subprocess.run(command, cwd=ROOT, input=script or "", stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace", timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return "failed", f"no end after {SECONDS} s"
    if done.returncode != 0:
        end = "\n".join("    " + line for line in done.stdout.splitlines()[-30:])
        return "failed", f"exit {done.returncode}\n{end}"
    return "passed", done.stdout


def run_shell(script):
    return run(["bash", "-euo", "pipefail", "-c", script])


def run_python(script, venvs=os.path.join(ROOT, "build", "venv")):
    name = environment_of(script)
    if not os.path.exists(os.path.join(venvs, name, "ready")):
        return "skipped", f"nothing to run it with: ./dev test {name}"
    verdict, said = run([os.path.join(venvs, name, "bin", "python"), "-"], script)
    if verdict == "passed" and (no_device := NO_DEVICE.search(said)):
        return "skipped", no_device[0]
    return verdict, said


def main():
    parser = argparse.ArgumentParser(description="run what the documents show")
    parser.add_argument("documents", nargs="*", default=["README.md"])
    parser.add_argument("--done", action="append", default=[], metavar="COMMAND")
    options = parser.parse_args()
    tally = dict(passed=0, failed=0, skipped=0)
    for document in options.documents:
        with open(os.path.join(ROOT, document), encoding="utf-8") as f:
            blocks = list(blocks_of(f.read()))
        for line, language, reason, lines in blocks:
            script = "\n".join(lines) if language == "python" else left_to_run(lines, options.done)
            start = time.monotonic()
            if reason or not script:
                verdict, said = "skipped", reason or "has run already"
            else:
                verdict, said = (run_python if language == "python" else run_shell)(script)
            tally[verdict] += 1
            place, seconds = f"{document}:{line}", time.monotonic() - start
            print({"passed": f"ok {place} ({seconds:.1f} s)", "failed": f"FAILED {place}: {said}",
                   "skipped": f"SKIPPED ({said}) {place}"}[verdict], flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in tally.items()))
    return 1 if tally["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
