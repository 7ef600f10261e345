#!/usr/bin/env python3
"""A table of medians from JSON lines of rounds, with the ratio to a reference taken round by round.

usage: table.py --group FIELD --name FIELD --reference NAME --value FIELD --unit TEXT [--extra FIELD] <LINES

Each line is an object with `round`, the group's field, the name's field and the value's.
"""

import argparse
import json
import statistics
import sys


def spread(values, form="{:.0f}"):
    return "{} ({}, {})".format(*(form.format(f) for f in (statistics.median(values), min(values), max(values))))


def main():
    parser = argparse.ArgumentParser()
    for option in ("group", "name", "reference", "value", "unit"):
        parser.add_argument("--" + option, required=True)
    parser.add_argument("--extra")
    args = parser.parse_args()
    rows = [json.loads(line) for line in sys.stdin if line.strip()]
    found = {(row[args.group], row[args.name], row["round"]): row for row in rows}
    groups = sorted({row[args.group] for row in rows})
    names = list(dict.fromkeys(row[args.name] for row in rows))
    rounds = sorted({row["round"] for row in rows})
    header = [args.group, args.name, f"{args.unit}, median (min, max)", f"{args.reference} / it, by pairs"]
    header += [args.extra] if args.extra else []
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for group in groups:
        for name in names:
            values = [found[group, name, n][args.value] for n in rounds]
            ratios = [found[group, args.reference, n][args.value] / found[group, name, n][args.value] for n in rounds]
            cells = [str(group), name, spread(values), "1" if name == args.reference else spread(ratios, "{:.2f}")]
            if args.extra:
                cells.append(spread([found[group, name, n][args.extra] for n in rounds], "{:.3f}"))
            print("| " + " | ".join(cells) + " |")


main()
