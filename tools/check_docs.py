#!/usr/bin/env python3
"""Checks the documents and what no file may say: check_docs.py [ROOT]

Relative links in *.md lead to files that exist; the README is there and shows commands; no text file names a path of
one machine. Prints `file:line: reason`; exit 1 when anything is wrong.
"""
import os
import re
import sys

TEXT = (".md", ".h", ".cpp", ".cu", ".cuh", ".c", ".py", ".cmake", ".in", ".txt", ".json", ".toml")
TEXT_NAMES = ("dev", "run", ".gitignore", ".clang-format")
SKIPPED_FOLDERS = re.compile(r"\.git|build(-.*)?|install|__pycache__|\.cache")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
MACHINE_PATH = re.compile(r"(?<![\w./$}-])/(home|root|work|farm|Users)/\w")


def text_files(root):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not SKIPPED_FOLDERS.fullmatch(name))
        for name in sorted(names):
            if name.endswith(TEXT) or name in TEXT_NAMES:
                yield os.path.join(folder, name)


def check_line(path, line):
    if match := MACHINE_PATH.search(line):
        yield f"a path of one machine: {match[0]}..."
    if path.endswith(".md"):
        for target in LINK.findall(line):
            file = target.split("#")[0]
            if not re.match(r"[a-z]+:", target) and file:
                if not os.path.exists(os.path.join(os.path.dirname(path), file)):
                    yield f"the link leads nowhere: {target}"


def check_tree(root):
    problems = []
    for path in text_files(root):
        with open(path, encoding="utf-8", errors="replace") as f:
            fenced = False
            for number, line in enumerate(f, 1):
                fenced ^= line.lstrip().startswith("```")
                # Code blocks hold no links, but a path in one is as wrong as anywhere.
                for reason in check_line(path, re.sub(r"\]\(", "] (", line) if fenced else line):
                    problems.append(f"{os.path.relpath(path, root)}:{number}: {reason}")
    readme = os.path.join(root, "README.md")
    if not os.path.exists(readme):
        problems.append("README.md:1: missing")
    elif "```sh\n" not in open(readme, encoding="utf-8").read():
        problems.append("README.md:1: shows no command (a block marked sh)")
    return problems


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    problems = check_tree(os.path.abspath(root))
    for problem in problems:
        print(problem)
    print(f"documents: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
