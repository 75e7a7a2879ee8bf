#!/usr/bin/env python3
"""Draws some steps of a timeline (LOCKSTEP_TIMELINE) as an SVG file: a row for each thread of each rank.

Usage: bench/draw_timeline.py DIR [--step N] [--steps N] [--output FILE.svg]
  --step N         the first step, as rank 0 numbers them (default: the middle one)
  --steps N        how many (default 1)
  --output FILE    default: timeline.svg
"""
import argparse
import glob
import html
import json
import os
import sys

from options import number

WIDTH, LEFT, RIGHT, TOP, ROW, GAP = 1000, 150, 20, 40, 26, 8
# The palette of Okabe and Ito. Sections of other categories contain these and are not drawn.
COLOURS = {
    "kernel": "#0072b2",
    "launch": "#0072b2",
    "update": "#009e73",
    "communication": "#d55e00",
    "wait": "#cccccc",
    "data": "#e69f00",
    "checkpoint": "#cc79a7",
    "user": "#56b4e9",
}


def read(directory):
    """The sections of all ranks, and the names of their threads."""
    sections, threads = [], {}
    files = glob.glob(os.path.join(directory, "rank*.json"))
    if not files:
        sys.exit("%s: no rank*.json here" % directory)
    for path in files:
        try:
            with open(path, encoding="utf-8") as file:
                events = json.load(file)
            for event in events:
                key = event["pid"], event["tid"]
                if event["ph"] == "X":
                    sections.append(event)
                elif event["name"] == "thread_name":
                    threads[key] = event["args"]["name"]
        except OSError as error:
            sys.exit("%s: %s" % (path, error.strerror))
        except (ValueError, TypeError, KeyError):
            sys.exit("%s: not a timeline" % path)
    return sections, threads


def find_window(sections, step, n_steps):
    """The numbers of the first and the last step that rank 0 has of those wanted, and their begin and end in microseconds."""
    steps = {e["args"]["step"]: e for e in sections if e["pid"] == 0 and e["name"] == "step"}
    if not steps:
        sys.exit("rank 0 has no steps of lks_trainer_step")
    first = sorted(steps)[len(steps) // 2] if step is None else step
    chosen = [s for s in range(first, first + n_steps) if s in steps]
    if not chosen:
        sys.exit("there is no step %d, only %d to %d" % (first, min(steps), max(steps)))
    last = steps[chosen[-1]]
    return chosen[0], chosen[-1], steps[chosen[0]]["ts"], last["ts"] + last["dur"]


def draw(sections, threads, begin, end, title):
    scale = (WIDTH - LEFT - RIGHT) / (end - begin)
    inside = [e for e in sections if e["cat"] in COLOURS and e["ts"] < end and e["ts"] + e["dur"] > begin]
    rows = sorted({(e["pid"], e["tid"]) for e in inside})
    height = TOP + len(rows) * (ROW + GAP) + 60
    out = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">' % (WIDTH, height),
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="%d" y="24" font-size="15">%s</text>' % (LEFT, html.escape(title)),
    ]
    for i, row in enumerate(rows):
        y = TOP + i * (ROW + GAP)
        name = "rank %d, %s" % (row[0], threads.get(row, "?"))
        out.append('<text x="%d" y="%d" text-anchor="end">%s</text>' % (LEFT - 8, y + ROW * 0.65, html.escape(name)))
        # Longer sections first, so that what they contain is drawn over them.
        for e in sorted((e for e in inside if (e["pid"], e["tid"]) == row), key=lambda e: -e["dur"]):
            left, right = max(e["ts"], begin), min(e["ts"] + e["dur"], end)
            out.append(
                '<rect x="%.2f" y="%d" width="%.2f" height="%d" fill="%s"><title>%s: %.0f us</title></rect>'
                % (LEFT + (left - begin) * scale, y, max((right - left) * scale, 0.3), ROW, COLOURS[e["cat"]], html.escape(e["name"]), e["dur"])
            )
    base = TOP + len(rows) * (ROW + GAP)
    tick = next(t for t in (10**k * m for k in range(9) for m in (1, 2, 5)) if (end - begin) / t <= 12)
    for k in range(int((end - begin) / tick) + 1):
        x = LEFT + k * tick * scale
        out.append('<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#888" stroke-width="0.4"/>' % (x, TOP - 4, x, base))
        out.append('<text x="%.1f" y="%d" text-anchor="middle">%g</text>' % (x, base + 14, k * tick / 1000))
    out.append('<text x="%d" y="%d" text-anchor="end">ms</text>' % (LEFT - 8, base + 14))
    x = LEFT
    for category in (c for c in COLOURS if any(e["cat"] == c for e in inside)):
        out.append('<rect x="%d" y="%d" width="12" height="12" fill="%s"/>' % (x, base + 30, COLOURS[category]))
        out.append('<text x="%d" y="%d">%s</text>' % (x + 17, base + 41, category))
        x += 35 + 8 * len(category)
    return "\n".join(out + ["</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory")
    parser.add_argument("--step", type=int)
    parser.add_argument("--steps", type=number, default=1)
    parser.add_argument("--output", default="timeline.svg")
    flags = parser.parse_args()
    sections, threads = read(flags.directory)
    first, last, begin, end = find_window(sections, flags.step, flags.steps)
    title = "step %d" % first if last == first else "steps %d to %d" % (first, last)
    drawing = draw(sections, threads, begin, end, "%s: %.1f ms" % (title, (end - begin) / 1000))
    try:
        with open(flags.output, "w", encoding="utf-8") as file:
            file.write(drawing)
    except OSError as error:
        sys.exit("%s: %s" % (flags.output, error.strerror))


if __name__ == "__main__":
    main()
