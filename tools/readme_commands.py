#!/usr/bin/env python3
"""Runs the commands that the documents show: readme_commands.py [--done COMMAND]... [DOCUMENT]...

Every fenced block marked `sh` in README.md (or the documents given) runs in a fresh shell in the root of the
repository. The line before a block may hold `<!-- skip: reason -->`. --done names a command that has run already,
such as "./dev test": lines that are just that command are left out. One line a block, then a tally; exit 1 on failure.
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


def blocks_of(text):
    """(line number, skip reason or None, lines) of each ```sh block."""
    lines = text.splitlines()
    start = None
    for number, line in enumerate(lines):
        if start is None and line.strip() == "```sh":
            start = number
        elif start is not None and line.strip() == "```":
            skip = SKIP.search(lines[start - 1]) if start else None
            yield start + 1, skip and skip[1], lines[start + 1:number]
            start = None
    if start is not None:
        raise SystemExit(f"line {start + 1}: the block is never closed")


def without_comment(line):
    return re.sub(r"(^|\s)#.*", "", line).strip()


def left_to_run(lines, done):
    """The script of a block without the commands that have run; empty when none is left."""
    lines = [line for line in lines if without_comment(line) not in done]
    return "\n".join(lines) if any(map(without_comment, lines)) else ""


def run(script):
    """None, or why it failed, with the end of its output."""
    try:
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=ROOT, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                              timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"no end after {SECONDS} s"
    if done.returncode == 0:
        return None
    return f"exit {done.returncode}\n" + "\n".join("    " + line for line in done.stdout.splitlines()[-30:])


def main():
    parser = argparse.ArgumentParser(description="run the commands that the documents show")
    parser.add_argument("documents", nargs="*", default=["README.md"])
    parser.add_argument("--done", action="append", default=[], metavar="COMMAND")
    options = parser.parse_args()
    passed = failed = skipped = 0
    for document in options.documents:
        with open(os.path.join(ROOT, document), encoding="utf-8") as f:
            blocks = list(blocks_of(f.read()))
        for line, reason, lines in blocks:
            script = left_to_run(lines, options.done)
            place = f"{document}:{line}"
            if reason or not script:
                skipped += 1
                print(f"SKIPPED ({reason or 'has run already'}) {place}", flush=True)
                continue
            start = time.monotonic()
            failure = run(script)
            passed, failed = passed + (not failure), failed + bool(failure)
            seconds = time.monotonic() - start
            print(f"FAILED {place}: {failure}" if failure else f"ok {place} ({seconds:.1f} s)", flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
