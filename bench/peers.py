#!/usr/bin/env python3
"""Decode and prefill on a CUDA device beside everybody who can do it, in one process and over one K and V:
peers.py [NAME ...] [--library libtamis.so] [--budget SECONDS] [--samples N] [--out FILE] [--plot FILE]

Every contender is a CUDA graph of all turns, timed by events in random order, and judged by a float64 reference in the
same run. Who is absent, refuses or computes something else is named in the record. Needs torch with CUDA;
`--plot-only RECORD` draws an existing record and needs neither.
"""
import argparse
import fnmatch
import gc
import glob
import importlib.util
import json
import math
import os
import subprocess
import sys
import time

import peer_contenders as contenders
import peer_device as dev
import peer_plot
import peer_prefill
import peer_record as rec
import tamis_ctypes as t
from peer_decode import Work

TURNS = {1: 20, 8: 3, 64: 1}  # a cycle of selected decode reads some 330 MiB and more: over five times the L2
WRONG = 0.1                   # of the largest value of the reference: beyond it a result is no result


# name -> (work of (torch, library), contenders of it)
CASES = {**{f"decode64k.b{b}": (lambda torch, library, b=b: Work(torch, library, b, TURNS[b]), lambda: contenders.ALL)
            for b in TURNS},
         "prefill": (peer_prefill.Prefill, peer_prefill.contenders)}


def skip(record, name, peer, why):
    record["skipped"].append({"name": name, "peer": peer, "why": why})


# ---------------------------------------------------------------------------- one case

def set_up(torch, work, name, listed, record, budget):
    """{(reading, peer): (Made, Event)}; whoever refuses is in `skipped`. A device that answers no more raises."""
    ready = {}
    for reading, peer, make in listed:
        key = (f"{name}.{reading}", peer)
        if budget.spent():
            skip(record, *key, "the budget was spent before its set-up")
            continue
        try:
            made = make(work)
            ready[key] = made, dev.Event(torch, made.call, work.turns, work.nodes(), made.host)
        except Exception as error:  # whatever a contender refuses with goes on record
            skip(record, *key, dev.first_line(error))
            torch.cuda.synchronize()
    return ready


def error_of(torch, work, kind, made, event, want):
    """Largest difference of turn 0's checked results after one more event over poisoned outputs; None: not finite."""
    for out in made.outs:
        out.fill_(float("nan"))
    event.run()
    torch.cuda.synchronize()
    error = float((work.results(made.outs[0], kind) - want).abs().max())
    return error if math.isfinite(error) else None


def run_case(torch, library, name, record, samples, budget, cases_left, first):
    begun = time.monotonic()
    make, listed = CASES[name]
    work, want, found = make(torch, library), {}, []
    ready = set_up(torch, work, name, listed(), record, budget)
    if not ready:
        return
    # The first set-up also loads and compiles much that later ones find ready.
    seconds = budget.share(cases_left, (time.monotonic() - begun) / (4 if first else 1))
    times, warmup, note = dev.measure(torch, {key: event for key, (_, event) in ready.items()}, samples, seconds)
    for key, (us, host) in times.items():
        made, event = ready[key]
        kind, error, rows = work.kind(key[0].removeprefix(f"{name}.")), None, 0
        if made.outs is not None:
            if kind not in want:
                want[kind] = work.reference(0, kind)
            error, rows = error_of(torch, work, kind, made, event, want[kind]), work.checked_rows(kind)
            if error is None or error > WRONG * float(want[kind].abs().max()):
                skip(record, *key, f"wrong result: largest error {error}, median {rec.percentile(sorted(us), 0.5)} us")
                continue
        bytes_flops = work.counted(kind) if made.outs is not None else (0, 0)
        notes = [note, event.note, "host wall time, waited for" if made.host else ""]
        one = rec.reading(*key, {**work.case(kind), **made.case}, us, warmup, *bytes_flops, max_error=error,
                          checked_rows=rows, note="; ".join(x for x in notes if x))
        one["wall_us"], one["nodes"] = sum(host) / len(host), event.nodes
        found.append(one)
    work.finish(found)
    record["readings"] += found


# ---------------------------------------------------------------------------- the run

def query(field):
    try:
        found = subprocess.run(("nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"),
                               capture_output=True, text=True)
        return found.stdout.split("\n")[0].strip() or None
    except OSError:
        return None


def clocks():
    return {"sm_mhz": query("clocks.sm"), "memory_mhz": query("clocks.mem")}


def find_library(given):
    """The path of libtamis.so: as given, in the installed package `tamis`, or as ./dev build leaves it."""
    if given:
        return given
    places = [os.path.join(rec.ROOT, "build", "src")]
    try:
        spec = importlib.util.find_spec("tamis")
        for folder in (spec.submodule_search_locations or []) if spec else []:
            places[:0] = [folder, os.path.join(folder, "lib")]
    except (ImportError, ValueError):
        pass
    for place in places:
        for path in sorted(glob.glob(os.path.join(place, "libtamis.so*"))):
            return path
    raise t.Failure("no libtamis.so: neither --library, nor one in an installed package tamis (whose own module keeps "
                    "its C interface to itself), nor build/src/libtamis.so (./dev build, where there is nvcc)")


def load_library(path):
    try:
        return t.Library(path)
    except (OSError, AttributeError) as error:
        raise t.Failure(f"no library of Tamis with its C interface: {path}: {error}") from error


def new_record(torch, library):
    peers = {"torch": torch.__version__, "cudnn": str(torch.backends.cudnn.version()), "tamis": library.version,
             **contenders.others()}
    record = rec.environment(None, peers)
    record.update(gpu=torch.cuda.get_device_name(), driver=query("driver_version"), cuda=torch.version.cuda,
                  power_limit=query("power.limit"), ecc=query("ecc.mode.current"))
    record["clocks"]["gpu_before"] = clocks()
    return record


def run(options, budget):
    """The record, and whether every case came to its end."""
    library = load_library(find_library(options.library))
    try:
        import torch
    except ImportError as error:
        raise t.Failure(f"torch is absent, there is nothing to measure beside: {error}") from error
    if not torch.cuda.is_available():
        raise t.Failure("torch finds no CUDA device")
    torch.set_grad_enabled(False)
    record, fine = new_record(torch, library), True
    wanted = [name for name in CASES if any(fnmatch.fnmatchcase(name, pattern) for pattern in options.names)]
    if "prefill" in wanted:
        try:
            record["ceilings"] = peer_prefill.ceilings(torch, dev.measure, dev.Event)
        except Exception as error:  # the cases may do without
            skip(record, "ceilings", "torch", dev.first_line(error))
    for done, name in enumerate(wanted):
        if budget.spent():
            skip(record, f"{name}.*", "*", "the budget was spent before its set-up")
            continue
        try:
            run_case(torch, library, name, record, options.samples, budget, len(wanted) - done - 1, done == 0)
        except Exception as error:  # memory ran out, or the device answers no more: what was read before stays
            skip(record, f"{name}.*", "*", dev.first_line(error))
            fine = False
        if options.out:
            rec.write(options.out, record)
        gc.collect()
        try:
            torch.cuda.empty_cache()
        except Exception:  # a device lost; the cases to come will say so
            pass
    record["clocks"]["gpu_after"] = clocks()
    return record, fine and bool(record["readings"])


def table(record):
    lines = []
    mine = {one["name"]: one["median_us"] for one in record["readings"] if not one["peer"]}
    for one in sorted(record["readings"], key=lambda one: (list(dict.fromkeys(
            x["name"] for x in record["readings"])).index(one["name"]), one["median_us"])):
        ratio = f"{one['median_us'] / mine[one['name']]:>7.2f} x" if one["name"] in mine else " " * 9
        rate = f"{one['tb_s']:>6.2f} TB/s" if one["tb_s"] else " " * 11
        if "ratio_to_cudnn_dense" in one and one["tflop_s"]:
            ratio = f"{one['ratio_to_cudnn_dense']:>7.2f} c" if one["ratio_to_cudnn_dense"] else " " * 9
            rate = f"{one['tflop_s']:>5.0f} TFLOP/s"
        error = "" if one["max_error"] is None else f"  error {one['max_error']:.1e}"
        lines.append(f"{one['name']:<28}{one['peer'] or 'tamis':<30}{one['median_us']:>10.2f} us{ratio}  {rate}"
                     f"  n {one['samples']}{error}{'  ' + one['note'] if one['note'] else ''}")
    lines += [f"skipped: {one['name']} {one['peer'] or 'tamis'}: {one['why']}" for one in record["skipped"]]
    return lines + [f"{name}: {how}" for name, how in record["peers"].items()]


def draw(record, path):
    try:
        picture = peer_plot.plot(record)
    except ValueError as error:
        raise t.Failure(f"no picture: {error}") from error
    with open(path, "w", encoding="utf-8") as f:
        f.write(picture)


def read_record(path):
    with open(path, encoding="utf-8") as f:
        try:
            record = json.load(f)
        except ValueError as error:
            raise t.Failure(f"{path} is not JSON: {error}") from error
    if not isinstance(record, dict) or not isinstance(record.get("readings"), list):
        raise t.Failure(f"{path} is no record of readings")
    return record


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", default=["*"], help="decode64k.b1, .b8, .b64, prefill, as shell globs")
    parser.add_argument("--library", help="libtamis.so of a build with CUDA")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="bounds the whole run: fewer samples for all")
    parser.add_argument("--out", metavar="FILE", help="write the record here instead of to stdout")
    parser.add_argument("--plot", metavar="FILE", help="write a picture of it (SVG)")
    parser.add_argument("--plot-only", metavar="RECORD", help="measure nothing: --plot of this record")
    options = parser.parse_args(arguments)
    if options.plot_only and not options.plot:
        parser.error("--plot-only needs --plot FILE")
    if options.samples < 1 or (options.budget is not None and options.budget <= 0):
        parser.error("--samples and --budget are more than 0")
    return options


def main(arguments=None):
    budget, options = dev.Budget(), parse(arguments)
    budget.seconds = options.budget
    try:
        if options.plot_only:
            draw(read_record(options.plot_only), options.plot)
            return 0
        record, fine = run(options, budget)
        rec.write(options.out, record)
        print("\n".join(table(record)), file=sys.stderr)
        if options.plot and record["readings"]:
            draw(record, options.plot)
    except (t.Failure, OSError) as error:
        print(f"peers.py: {error}", file=sys.stderr)
        return 1
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
