#!/usr/bin/env python3
"""Checks that includes follow the house's order: check_includes.py [ROOT]

The rooms under src/ are ranked; a file may include its own room and rooms of a lower rank. What each room may
read is stated in the tables below, and nowhere else. Prints one `file:line: reason` per violation; exit 1 then.
"""
import os
import re
import sys

# Rooms of one rank do not know each other.
RANK = {"core": 0, "index": 1, "io": 1, "select": 1, "quant": 1, "plan": 2, "merge": 3, "kernels": 4,
        "attention": 5, "diagnose": 6, "capi": 7}
READERS_OF_DIAGNOSE = ("diagnose", "capi", "cli")

# Folders inside a room with a rule of their own: folder -> prefixes it may include from src/ and include/.
# The reference judges the kernels, so it shares no arithmetic with them; the PTX vocabulary stands alone.
CLOSED = {
    "kernels/cuda/device/": ("kernels/cuda/device/",),
    "kernels/reference/": ("kernels/reference/", "core/checks.h", "tamis/"),
}

FOLDERS = ("include", "src", "cli", "tests", "examples", "bench", "python")
ENDINGS = (".h", ".cpp", ".cu", ".cuh", ".c")
C_HEADERS = ("stdint.h", "stddef.h")  # all that the C interface needs
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')


def source_files(root):
    """Paths relative to root, with forward slashes, sorted."""
    for top in FOLDERS:
        for folder, _, names in sorted(os.walk(os.path.join(root, top))):
            for name in sorted(names):
                if name.endswith(ENDINGS):
                    yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")


def includes_of(path):
    """(line number, "<" or '"', name) of each include."""
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            if match := INCLUDE.match(line):
                yield number, match[1], match[2]


def room_of(path):
    """The room of a file below src/, "cli" for the command, else None."""
    parts = path.split("/")
    if parts[0] == "src":
        return parts[1] if len(parts) > 2 else None
    return "cli" if parts[0] == "cli" else None


def check_public(quote, name):
    if quote == '"':
        return None if name.startswith("tamis/") else f'public headers include only "tamis/...", not "{name}"'
    standard = name in C_HEADERS or re.fullmatch(r"[a-z_]+", name)
    return None if standard else f"public headers include only the standard library, not <{name}>"


def check_room(path, name):
    """Why a file below src/ or cli/ may not include "name" of src/ or include/; None when it may."""
    inside = path.removeprefix("src/")
    for folder, allowed in CLOSED.items():
        if inside.startswith(folder):
            return None if name.startswith(allowed) else f'{folder} may not include "{name}"'
    room, target = room_of(path), name.split("/")[0]
    if target not in RANK or target == room:
        return None
    if target == "diagnose" and room not in READERS_OF_DIAGNOSE:
        return f'nothing but the command and the C interface reads diagnose: "{name}"'
    if room in RANK and RANK[target] >= RANK[room]:
        return f'room {room} may not include room {target}: "{name}"'
    return None


def is_own_header(path, name):
    stem = path.rsplit(".", 1)[0]
    if not path.startswith("src/") or path.endswith((".h", ".cuh")):
        return False
    same_name = name.rsplit(".", 1)[0].split("/")[-1] == stem.split("/")[-1]
    return same_name and (name.startswith("tamis/") or stem.endswith(name.rsplit(".", 1)[0]))


def check_groups(path, includes):
    """The header a file implements or is about first, then <...>, then "..."; yields (line, reason)."""
    seen_quoted = False
    for place, (line, quote, name) in enumerate(includes):
        if place == 0 and quote == '"':
            continue
        if quote == '"' and is_own_header(path, name):
            yield line, f'own header "{name}" comes first'
        if quote == "<" and seen_quoted:
            yield line, f'<{name}> comes before the "..." includes'
        seen_quoted = seen_quoted or quote == '"'


def check_file(root, path):
    """Yields (line, reason)."""
    includes = list(includes_of(os.path.join(root, path)))
    yield from check_groups(path, includes)
    for line, quote, name in includes:
        reason = None
        if path.startswith("include/"):
            reason = check_public(quote, name)
        elif path.startswith(("src/", "cli/")) and quote == '"':
            reason = check_room(path, name)
        if reason:
            yield line, reason


def check_tree(root):
    """All violations as `file:line: reason`, and the number of files read."""
    files = list(source_files(root))
    return [f"{path}:{line}: {reason}" for path in files for line, reason in check_file(root, path)], len(files)


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    violations, count = check_tree(root)
    for violation in violations:
        print(violation)
    print(f"includes: {count} files, {len(violations)} violations")
    return 1 if violations or not count else 0


if __name__ == "__main__":
    sys.exit(main())
