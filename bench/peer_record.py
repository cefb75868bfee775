"""The record and the measuring loop of the peer benches: what record.cpp and protocol.cpp do for `tamis bench`.

docs/benchmarks.md has the schema. Standard library only.
"""
import datetime
import json
import math
import os
import random
import re
import subprocess
import time

SCHEMA = 1
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def read(path, otherwise=None):
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read()
    except OSError:
        return otherwise


def first_line(path):
    text = read(path, "")
    return text.split("\n")[0] or None


def last_level_cache():
    sizes = []
    for index in range(8):
        text = first_line(f"/sys/devices/system/cpu/cpu0/cache/index{index}/size")
        if match := re.match(r"(\d+)([KM]?)", text or ""):
            sizes.append(int(match[1]) << {"": 0, "K": 10, "M": 20}[match[2]])
    return max(sizes, default=64 << 20)


def cpu_info():
    """{key: value} of the first processor."""
    pairs = {}
    for line in read("/proc/cpuinfo", "").split("\n"):
        key, colon, value = line.partition(":")
        if colon:
            pairs.setdefault(key.strip(), value.strip())
    return pairs


def cpu():
    info = cpu_info()
    model = info.get("model name", "unknown")
    if "cpu family" in info:
        model += f" (family {info['cpu family']}, model {info.get('model')}, stepping {info.get('stepping')})"
    return {"model": model, "cores": os.sysconf("SC_NPROCESSORS_ONLN"), "last_level_cache_bytes": last_level_cache(),
            "huge_pages": first_line("/sys/kernel/mm/transparent_hugepage/enabled")}


def clocks():
    folder = "/sys/devices/system/cpu/cpu0/cpufreq/"
    return {"governor": first_line(folder + "scaling_governor"), "max_khz": first_line(folder + "scaling_max_freq"),
            "mhz_at_start": cpu_info().get("cpu MHz")}


def load_average():
    line = first_line("/proc/loadavg")
    return line.rsplit(" ", 1)[0] if line else "unknown"


def commit():
    def git(*arguments):
        return subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True)
    try:
        head = git("rev-parse", "HEAD")
        if head.returncode:
            return "unknown"
        changed = git("--no-optional-locks", "status", "--porcelain", "--untracked-files=no").stdout.strip()
        return head.stdout.strip() + ("+changes" if changed else "")
    except OSError:
        return "unknown"


def environment(threads, peers):
    """`peers`: library -> version or why it is absent."""
    return {"schema": SCHEMA, "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "gpu": None, "driver": None, "cuda": None, "cpu": cpu(), "isa": None, "threads": threads,
            "compiler": None, "commit": commit(), "clocks": clocks(), "power_limit": None,
            "ecc": None, "other_processes": {"load_average_before": load_average()}, "peers": peers, "ceilings": {},
            "readings": [], "skipped": []}


# ---------------------------------------------------------------------------- statistics

def percentile(ascending, share):
    """Nearest rank."""
    rank = math.ceil(share * len(ascending) - 1e-9)
    return ascending[min(max(rank, 1), len(ascending)) - 1]


def reading(name, peer, case, samples_us, warmup, work_bytes=0, flops=0, ceiling=None, ceiling_us=None, max_error=None,
            checked_rows=0, note=""):
    us = sorted(samples_us)
    median = percentile(us, 0.5)

    def rate(work):
        return work / median * 1e-6 if work else None
    return {"name": name, "case": case, "samples": len(us), "warmup": warmup, "median_us": median,
            "p25_us": percentile(us, 0.25), "p75_us": percentile(us, 0.75), "p95_us": percentile(us, 0.95),
            "p99_us": percentile(us, 0.99), "min_us": us[0], "max_us": us[-1], "wall_us": sum(us) / len(us),
            "bytes": work_bytes, "flops": flops, "tb_s": rate(work_bytes), "tflop_s": rate(flops),
            "fraction_of_ceiling": ceiling_us / median if ceiling_us else None, "ceiling": ceiling,
            "max_error": max_error, "checked_rows": checked_rows, "peer": peer, "note": note}


# ---------------------------------------------------------------------------- the loop

# Untimed rest before every event: thread pools that spin after their work would otherwise take cores from the next
# contender, whoever it is.
REST_S = 0.002


def measure(contenders, warmup=100, samples=1000, long_us=10000, budget_s=20, least=30, seed=1):
    """contenders: {name: f(turn)}. Every round runs each once in random order, each event on the next turn.

    Returns ({name: [us]}, warmup, note).
    """
    order, rng, turn = list(contenders), random.Random(seed), 0
    times = {name: [] for name in contenders}

    def one_round(keep):
        nonlocal turn
        rng.shuffle(order)
        longest = 0
        for name in order:
            time.sleep(REST_S)
            start = time.perf_counter_ns()
            contenders[name](turn)
            us = (time.perf_counter_ns() - start) / 1000
            turn += 1
            longest = max(longest, us)
            if keep:
                times[name].append(us)
        return longest

    one_round(False)
    longest = one_round(False)
    note = ""
    if longest > long_us and samples > least:
        samples = min(samples, max(least, int(budget_s * 1e6 / longest)))
        warmup = max(3, min(warmup, samples // 10))
        note = f"fewer samples: one event of this loop takes {longest / 1000:.1f} ms"
    warmup = min(warmup, samples)
    for _ in range(2, warmup):
        one_round(False)
    for _ in range(samples):
        one_round(True)
    return times, warmup, note


def write(path, record):
    record["other_processes"]["load_average_after"] = load_average()
    text = json.dumps(record, indent=1) + "\n"
    if path is None:
        print(text, end="")
        return
    with open(path + ".part", "w", encoding="utf-8") as f:
        f.write(text)
    os.replace(path + ".part", path)
