#!/usr/bin/env python3
"""Where lists begin to pay in prefill: crossover.py RECORD... [--plot FILE]

Reads the whole steps (`.index_attend`) of `prefill.cross.*` from records of `tamis bench`, sets each beside the dense
step of its length in the same record, prints the table and the share of blocks at which the two cost the same, and
draws it as SVG.
"""
import argparse
import json
import math
import re
import sys

import peer_plot

NAME = re.compile(r"prefill\.cross\.L(\d+)k\.(?:dense|block(\d+)\.d\d+\.(\w+))\.index_attend$")
LEFT, TOP, WIDTH, HEIGHT, GAP, COLUMNS = 46, 64, 200, 150, 58, 3  # pixels; panels a row
COLORS = {16: "#b8442f", 64: "#1b6ca8", 128: "#3f8f4f"}
DASHES = {"uniform": "", "clustered": "5 3"}
MOST = 64.0  # times faster than dense


def speedups(record):
    """{length: {(block, distribution): [(share of the blocks, dense time / time)]}}, shares ascending."""
    dense, lists = {}, {}
    for one in record["readings"]:
        found = NAME.match(one["name"])
        if found is None or one.get("peer"):
            continue
        length = int(found[1])
        if found[2] is None:
            dense[length] = one["median_us"]
        else:
            lists.setdefault((length, int(found[2]), found[3]), []).append((one["case"]["density"], one["median_us"]))
    out = {}
    for (length, block, spread), points in sorted(lists.items()):
        if length in dense:
            out.setdefault(length, {})[block, spread] = [(share, dense[length] / us) for share, us in sorted(points)]
    return out


def crossover(points):
    """The share at which lists cost what the dense step does, between two readings; None: not among them."""
    for (share, fast), (next_share, slow) in zip(points, points[1:]):
        if fast >= 1 > slow:
            part = math.log(fast) / (math.log(fast) - math.log(slow))
            return share * (next_share / share) ** part
    return None


def table(found):
    lines = [f"{'length':>7} {'block':>5} {'':9} {'same cost at':>12}   share: times faster than dense"]
    for length, curves in found.items():
        for (block, spread), points in curves.items():
            at = crossover(points)
            each = "  ".join(f"{100 * share:.3g} %: {ratio:.2f}" for share, ratio in points)
            lines.append(f"{length:>6}K {block:>5} {spread:9} {'-' if at is None else f'{100 * at:.0f} %':>12}   {each}")
    return "\n".join(lines)


def panel(x, y, length, curves):
    shares = [share for points in curves.values() for share, _ in points]
    low, high = math.log(min(shares)), math.log(1.0)

    def place(share, ratio):
        up = math.log(min(max(ratio, 0.5), MOST) / 0.5) / math.log(MOST / 0.5)
        return x + WIDTH * (math.log(share) - low) / (high - low), y + HEIGHT * (1 - up)

    parts = [f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#bbbbbb"/>',
             peer_plot.text(x, y - 6, f"{length}K tokens", weight="bold")]
    for ratio in (1, 2, 4, 8, 16, 32):
        at = place(1, ratio)[1]
        parts.append(f'<line x1="{x}" y1="{at:.1f}" x2="{x + WIDTH}" y2="{at:.1f}" '
                     f'stroke="{"#555555" if ratio == 1 else "#e4e4e4"}" stroke-width="0.8"/>')
        parts.append(peer_plot.text(x - 4, at + 3, ratio, "end", 9))
    for share in sorted(set(shares)):
        parts.append(peer_plot.text(place(share, 1)[0], y + HEIGHT + 12, f"{100 * share:.3g}", "middle", 9))
    for (block, spread), points in curves.items():
        path = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLORS.get(block, "#333333")}" '
                     f'stroke-width="1.6" stroke-dasharray="{DASHES.get(spread, "1 2")}"/>')
    return parts


def plot(found, record):
    """The picture as text."""
    rows = math.ceil(len(found) / COLUMNS)
    width, height = LEFT + COLUMNS * (WIDTH + GAP), TOP + rows * (HEIGHT + GAP) + 6
    about = " · ".join(str(x) for x in (record.get("gpu"), record.get("date"), record.get("commit")) if x)
    parts = [peer_plot.text(10, 20, "Whole step over lists, times faster than dense, by the share of blocks in %", size=14,
                            weight="bold"), peer_plot.text(10, 38, about, size=10)]
    x = 300
    for block, color in COLORS.items():
        parts.append(peer_plot.text(x, 38, f"blocks of {block}", size=10).replace("<text", f'<text fill="{color}"'))
        x += 90
    parts.append(peer_plot.text(x, 38, "dashed: clustered", size=10))
    for i, (length, curves) in enumerate(found.items()):
        parts += panel(LEFT + i % COLUMNS * (WIDTH + GAP), TOP + i // COLUMNS * (HEIGHT + GAP), length, curves)
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
                      f'viewBox="0 0 {width} {height}" font-family="sans-serif">',
                      f'<rect width="{width}" height="{height}" fill="white"/>', *parts, "</svg>", ""])


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
        return record, speedups(record)
    except (OSError, ValueError, KeyError, TypeError) as why:
        sys.exit(f"crossover.py: {path} is no record: {why}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", metavar="RECORD", nargs="+")
    parser.add_argument("--plot", metavar="FILE", help="an SVG file")
    given = parser.parse_args()
    found, first = {}, None
    for path in given.records:
        record, lengths = read(path)
        if not lengths:
            sys.exit(f"crossover.py: {path} holds no whole steps of prefill.cross.* beside a dense one")
        if found.keys() & lengths.keys():
            sys.exit(f"crossover.py: {path} repeats lengths of a record before it")
        found.update(lengths)
        first = first or record
    found = dict(sorted(found.items()))
    print(table(found))
    if given.plot:
        with open(given.plot, "w", encoding="utf-8") as file:
            file.write(plot(found, first))


if __name__ == "__main__":
    main()
