#!/usr/bin/env python3
"""Runs the command over a folder of cases and judges what it says. README.md beside this file has the format.

    check_cases.py --tamis BINARY [--cases DIR] [--backend NAME] [--filter GLOB] [--skip-waiting] [-v]

With --skip-waiting, cases that need what the backend lacks (see `lacks`) must be refused as `unsupported`, naming it, and
count as skipped; any other answer fails, so that nothing can start to give numbers unjudged. What `explain` says
about them is checked all the same. Prints a line per failure and last `N passed, N failed, N skipped`; exit 1 on failure.
Needs nothing but Python.
"""
import argparse
import array
import concurrent.futures
import fnmatch
import json
import math
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

FORWARD_ONLY = ("cuda",)  # backends whose gradients wait: of a backward case only the forward part is judged
SECONDS = 120  # per command; sanitized builds are slow
SUFFIX = ".safetensors"
ARRAY_CODES = {"F64": "d", "F32": "f", "I64": "q", "I32": "i"}  # dtypes of expected and result files
SETS = ("set_indptr", "set_tokens", "set_slots")
VALUES = ("out", "lse", "d_q", "d_k", "d_v")
COUNTS = ("raw", "padding", "invalid", "duplicates", "unique")


class Failure(Exception):
    pass


class Skipped(Exception):
    pass


def expect(good, reason):
    if not good:
        raise Failure(reason)


# ---- files

class File:
    """Metadata, shapes and flat arrays of a safetensors file."""

    def __init__(self, path):
        try:
            blob = path.read_bytes()
            size = struct.unpack_from("<Q", blob)[0]
            header = json.loads(blob[8:8 + size])
        except (OSError, struct.error, ValueError) as why:
            raise Failure(f"{path.name}: {why}") from None
        self.metadata = header.pop("__metadata__", {})
        self.shape, self.data, self.dtype = {}, {}, {}
        for name, entry in header.items():
            self.dtype[name] = entry["dtype"]
            if entry["dtype"] in ARRAY_CODES:
                first, last = entry["data_offsets"]
                values = array.array(ARRAY_CODES[entry["dtype"]])
                values.frombytes(blob[8 + size + first:8 + size + last])
                if sys.byteorder == "big":
                    values.byteswap()
                self.shape[name], self.data[name] = entry["shape"], values


def json_object(text, source):
    try:
        value = json.loads(text)
    except ValueError:
        raise Failure(f"{source} is not JSON: {text[:100]!r}") from None
    expect(isinstance(value, dict), f"{source} is no JSON object")
    return value


# ---- comparisons

def compare_values(name, got, want, tolerance):
    worst, place = 0.0, None
    for i, (a, b) in enumerate(zip(got, want)):
        expect(not math.isnan(a), f"{name}[{i}] is NaN")
        if math.isinf(a) or math.isinf(b):
            expect(a == b, f"{name}[{i}] is {a}, expected {b}")
        elif abs(a - b) > max(worst, tolerance):
            worst, place = abs(a - b), i
    expect(place is None, f"{name}[{place}] is off by {worst:.3e}, allowed {tolerance:.3e}")


def compare_set(name, got, want, indptr, index_heads):
    if got == want:
        return
    i = next(i for i in range(len(want)) if got[i] != want[i])
    row = i if name == "set_indptr" else sum(1 for end in indptr[1:] if end <= i)
    raise Failure(f"{name}[{i}] is {got[i]}, expected {want[i]} "
                  f"(query {row // index_heads}, index head {row % index_heads})")


def compare_zeros(got, want, expected):
    """Gradients that no edge contributes to are 0, not small: d_k and d_v of unused tokens, d_q of empty rows."""
    rows = {name: range(len(want[name]) // expected.shape[name][-1]) for name in ("d_q", "d_k", "d_v")}

    def row(data, name, i):
        width = expected.shape[name][-1]
        return data[name][i * width:(i + 1) * width]

    for i in rows["d_k"]:
        if not any(row(want, "d_k", i)) and not any(row(want, "d_v", i)):
            expect(not any(row(got, "d_k", i)) and not any(row(got, "d_v", i)), f"d_k, d_v: row {i} is not 0")
    for i in rows["d_q"]:
        if want["lse"][i] == -math.inf:
            expect(not any(row(got, "d_q", i)), f"d_q: row {i} is empty but not 0")


def compare_report(got, want, prefix=""):
    """Integers and texts agree exactly, floats to a thousandth; keys that are not expected are free."""
    for key, value in want.items():
        name = prefix + key
        expect(key in got, f"explain: no {name}")
        if isinstance(value, dict):
            expect(isinstance(got[key], dict), f"explain: {name} is no object")
            compare_report(got[key], value, name + ".")
        else:
            number = isinstance(value, float) and isinstance(got[key], (int, float))
            same = abs(got[key] - value) <= 1e-3 * abs(value) if number else got[key] == value
            expect(same, f"explain: {name} is {got[key]}, expected {value}")


# ---- one case

class Case:
    def __init__(self, options, path, scratch):
        self.options, self.path = options, path
        self.name = path.name.removesuffix(SUFFIX)
        self.result = pathlib.Path(scratch, "result" + SUFFIX)

    def beside(self, ending):
        path = self.path.with_name(self.name + ending)
        return path if path.exists() else None

    def tamis(self, *arguments):
        try:
            return subprocess.run([self.options.tamis, *map(str, arguments)], capture_output=True, timeout=SECONDS,
                                  encoding="utf-8", errors="replace")
        except subprocess.TimeoutExpired:
            raise Failure(f"no answer within {SECONDS} s") from None
        except OSError as why:
            raise Failure(f"cannot run {self.options.tamis}: {why.strerror}") from None

    def run(self, *extra):
        return self.tamis("run", self.path, "--out", self.result, "--backend", self.options.backend, *extra)

    def check(self):
        checks = [check for ending, check in CHECKS.items() if self.beside(ending)]
        expect(checks, "nothing beside it says what to expect")
        waits = None
        for check in checks:
            try:
                check(self)
            except Skipped as why:
                waits = why
        if waits:
            raise waits


def last_line(text):
    return (text.strip().splitlines() or [""])[-1]


def refusal(done):
    """The JSON object that every failing command ends its stderr with."""
    return json_object(last_line(done.stderr), "last line of stderr")


def lacks(backend, problem):
    """What a problem needs that the backend has not got, by a word of the refusal; None for nothing."""
    if backend != "cuda":
        return None
    if float(problem.metadata.get("dropout_p", 0)) > 0:
        return "dropout"
    if any(problem.metadata.get(key, "plain") != "plain" for key in ("k_format", "v_format")):
        return "format"
    return next((dtype for name, dtype in problem.dtype.items() if name in ("q", "k", "v") and dtype == "F32"), None)


def check_answer(case):
    expected = File(case.beside(".expected" + SUFFIX))
    want = expected.data
    if case.options.backend in FORWARD_ONLY:
        want = {name: data for name, data in want.items() if not name.startswith("d_")}
    done = case.run("--dump-index", "--json", *(["--backward"] if "d_q" in want else []))
    missing = lacks(case.options.backend, File(case.path))
    if missing and case.options.skip_waiting:
        said = refusal(done) if done.returncode == 4 else {}
        expect(said.get("error") == "unsupported", f"{missing}: not refused as unsupported: exit {done.returncode}")
        expect(missing in (said.get("message") or ""), f"the refusal does not name {missing}: {said.get('message')!r}")
        expect(not case.result.exists(), "a refused case wrote a result file")
        raise Skipped(f"unsupported: {missing}")
    expect(done.returncode == 0, f"exit {done.returncode}: {last_line(done.stderr)[:200]}")

    result = File(case.result)
    got = result.data
    for name in (*SETS, *VALUES):
        if name in want:
            expect(name in got, f"no {name} in the result file")
            expect(result.shape[name] == expected.shape[name],
                   f"{name} has shape {result.shape[name]}, expected {expected.shape[name]}")
    index_heads = int(File(case.path).metadata["index_heads"])
    for name in SETS:
        compare_set(name, got[name], want[name], want["set_indptr"], index_heads)
    for name in VALUES:
        if name in want:
            compare_values(name, got[name], want[name], float(expected.metadata["tol_" + name]))
    if "d_q" in want:
        compare_zeros(got, want, expected)

    report = json_object(done.stdout, "output of --json")
    said = {**report.get("candidates", {}), "empty_rows": report.get("empty_rows")}
    for name in (*COUNTS, "empty_rows"):
        expect(said.get(name) == int(expected.metadata[name]),
               f"{name} is {said.get(name)}, expected {expected.metadata[name]}")


def check_refusal(case):
    want = json.loads(case.beside(".error.json").read_text())
    done = case.run()
    expect(done.returncode == want["exit"],
           f"exit {done.returncode}, expected {want['exit']} ({want['error']}): {last_line(done.stderr)[:200]}")
    said = refusal(done)
    for name, value in {"error": want["error"], **want["fields"]}.items():
        expect(said.get(name) == value, f"{name} is {said.get(name)}, expected {value}")
    message = said.get("message") or ""
    for word in want["message_contains"]:
        expect(word in message, f"the message does not name {word}: {message[:120]!r}")
    expect(message, "no message")
    expect(not case.result.exists(), "a refused case wrote a result file")


def check_explain(case):
    want = json.loads(case.beside(".explain.json").read_text())
    done = case.tamis("explain", case.path, "--tile", want["tile"], "--splits", want["splits"], "--json")
    expect(done.returncode == 0, f"explain: exit {done.returncode}: {last_line(done.stderr)[:200]}")
    compare_report(json_object(done.stdout, "output of explain"), want["expect"])


CHECKS = {".expected" + SUFFIX: check_answer, ".error.json": check_refusal, ".explain.json": check_explain}


# ---- all cases

def judge(options, path):
    """("passed" | "failed" | "skipped", reason)"""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            Case(options, path, scratch).check()
            return "passed", ""
        except Skipped as why:
            return "skipped", str(why)
        except Failure as why:
            return "failed", str(why)


def main():
    parser = argparse.ArgumentParser(description="judge a tamis binary by a folder of cases")
    parser.add_argument("--tamis", required=True, help="the binary")
    parser.add_argument("--cases", default=os.path.dirname(os.path.abspath(__file__)), help="folder (default: this one)")
    parser.add_argument("--backend", default="cpu", choices=("auto", "reference", "cpu", "cuda"))
    parser.add_argument("--filter", default="*", help="a glob over case names")
    parser.add_argument("--skip-waiting", action="store_true", help="what the backend lacks must be refused: skipped")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for every case")
    options = parser.parse_args()
    options.tamis = os.path.abspath(options.tamis)

    paths = [path for path in sorted(pathlib.Path(options.cases).glob("*" + SUFFIX))
             if not path.name.endswith(".expected" + SUFFIX)
             and fnmatch.fnmatch(path.name.removesuffix(SUFFIX), options.filter)]
    tally = {"passed": 0, "failed": 0, "skipped": 0}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, (verdict, reason) in zip(paths, pool.map(lambda path: judge(options, path), paths)):
            tally[verdict] += 1
            if verdict == "failed" or options.verbose:
                print(f"{verdict.upper()} {path.name.removesuffix(SUFFIX)}{': ' if reason else ''}{reason}")
    print(", ".join(f"{count} {verdict}" for verdict, count in tally.items()))
    return 1 if tally["failed"] or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
