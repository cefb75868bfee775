"""A record of peers as an SVG picture: a bar for each contender, grouped by reading, on one log axis."""
import math
from xml.sax.saxutils import escape

LABEL, PLOT, FIGURE, BAR, STEP, HEAD = 240, 480, 90, 12, 17, 26  # pixels
MINE, THEIRS = "#1b6ca8", "#b8b8b8"


def groups(record):
    """{name: [(peer, median in us)]}, fastest first."""
    found = {}
    for one in record["readings"]:
        found.setdefault(one["name"], []).append((one["peer"] or "tamis", one["median_us"]))
    return {name: sorted(bars, key=lambda bar: bar[1]) for name, bars in found.items()}


def axis(values):
    """The powers of ten around all values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def text(x, y, what, anchor="start", size=11, weight="normal"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}">'
            f'{escape(str(what))}</text>')


def plot(record):
    """The picture as text. ValueError: the record holds no reading."""
    bars_of = groups(record)
    if not bars_of:
        raise ValueError("the record holds no readings, there is nothing to plot")
    low, high = axis([us for bars in bars_of.values() for _, us in bars])

    def at(us):
        return LABEL + PLOT * (math.log10(us) - low) / (high - low)

    parts, y = [], 58
    for name, bars in bars_of.items():
        y += HEAD
        parts.append(text(10, y - 8, name, size=12, weight="bold"))
        for peer, us in bars:
            color = MINE if peer == "tamis" else THEIRS
            parts.append(text(LABEL - 6, y + BAR - 2, peer, "end"))
            parts.append(f'<rect x="{LABEL}" y="{y}" width="{max(at(us) - LABEL, 1):.1f}" height="{BAR}" '
                         f'fill="{color}"><title>{escape(f"{peer}: {us:.2f} us")}</title></rect>')
            parts.append(text(at(us) + 5, y + BAR - 2, f"{us:.1f}"))
            y += STEP
    bottom = y + 4
    for power in range(low, high + 1):
        x = LABEL + PLOT * (power - low) / (high - low)
        parts.append(f'<line x1="{x:.1f}" y1="50" x2="{x:.1f}" y2="{bottom}" stroke="#dddddd" stroke-width="0.7"/>')
        parts.append(text(x, bottom + 14, f"{10.0 ** power:g}", "middle"))
    parts.append(text(LABEL + PLOT / 2, bottom + 30, "median of one step, us (log)", "middle"))
    width, height = LABEL + PLOT + FIGURE, bottom + 40
    about = " · ".join(str(x) for x in (record.get("gpu"), record.get("date"), record.get("commit")) if x)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif">', f'<rect width="{width}" height="{height}" fill="white"/>',
        text(10, 22, "Decode beside peers", size=15, weight="bold"), text(10, 40, about, size=10), *parts, "</svg>",
        ""])
