"""How much a tiling loses against the best one, by what a rule may look at."""

from __future__ import annotations

import math
from collections import defaultdict

from .measure import Point

__all__ = ["regrets"]


def regrets(points: list[Point]) -> list[str]:
    """Lines of text: for each (steps, rows, context), the tilings with the least regret at their worst live length."""
    groups: dict[tuple[int, int, int], list[Point]] = defaultdict(list)
    for point in points:
        if point["us"]:
            groups[point["steps"], point["rows"], point["context"]].append(point)
    lines = ["regret by what a rule may look at (worst live length):"]
    regrets_of: dict[str, list[float]] = defaultdict(list)
    for (steps, rows, context), members in sorted(groups.items()):
        shared = set.intersection(*(set(point["us"]) for point in members))
        worst = {t: max(point["us"][t] / min(point["us"].values()) for point in members) for t in shared}
        for tiling, value in worst.items():
            regrets_of[tiling].append(value)
        best = sorted(worst.items(), key=lambda pair: pair[1])[:6]
        rule = str(members[0]["rule"])
        now = f"{worst[rule]:.3f}" if rule in worst else "-"
        shown = "  ".join(f"{tiling} {value:.3f}" for tiling, value in best)
        lines.append(f"  steps {steps} rows {rows:<5} {context // 1024}K: rule {rule} {now} | {shown}")
    means = {t: math.exp(sum(map(math.log, v)) / len(v)) for t, v in regrets_of.items() if len(v) == len(groups)}
    lines.append("over all points, geometric mean and worst:")
    for tiling, mean in sorted(means.items(), key=lambda pair: pair[1])[:10]:
        lines.append(f"  {tiling} {mean:.3f} {max(regrets_of[tiling]):.3f}")
    return lines
