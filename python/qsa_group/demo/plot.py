"""The demo's picture: one round's calls before and after grouping, and live tokens over time. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from qsa_group import QsaGroupError

from .report import MODE_WORDS
from .timeline import Lane, Timeline

__all__ = ["PlotError", "draw", "require"]

_COLORS = {"decode": "#3565a8", "target_verify": "#c98a2b", "draft_extend": "#5c8f5a"}
_ENDINGS = (".png", ".svg", ".pdf")
_INK = "#22272e"
_MUTED = "#6a737d"
_STYLE = {
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.edgecolor": _MUTED,
    "axes.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


class PlotError(QsaGroupError, RuntimeError):
    """The picture cannot be drawn; the message says why."""


def require(path: str) -> None:
    """Finds out before a long run whether ``path`` can be drawn; raises PlotError if not."""
    if find_spec("matplotlib") is None:
        raise PlotError("--plot needs matplotlib, which is not installed; run pip install 'qsa-group[plot]'")
    if not path.endswith(_ENDINGS):
        raise PlotError(f"--plot has value {path}, must end in {', '.join(_ENDINGS)}; name such a file")


def draw(path: str, timeline: Timeline, samples: Sequence[tuple[float, int, int]], *, title: str, where: str) -> None:
    """Draws the picture into ``path``.

    Args:
        path: a file name that `require` accepts.
        timeline: a round measured both ways.
        samples: (simulated seconds, live tokens, requests) of each round, in order of time.
        title: what was served.
        where: backend, device and versions.

    Raises:
        PlotError: the file cannot be written.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context(_STYLE):
        figure, (lanes, tokens) = plt.subplots(2, 1, figsize=(9, 5.4), height_ratios=(1.0, 1.25), layout="constrained")
        _draw_lanes(lanes, timeline)
        _draw_tokens(tokens, samples)
        figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
        figure.supxlabel(where, fontsize=7, color=_MUTED, x=0.01, ha="left")
        try:
            figure.savefig(path, dpi=110)
        except OSError as error:
            raise PlotError(f"cannot write --plot {path}: {error.strerror or error}; name another file") from error
        finally:
            plt.close(figure)


def _draw_lanes(axes: Any, timeline: Timeline) -> None:
    longest = max(timeline.step_by_step.total, timeline.grouped.total)
    _draw_lane(axes, 1, timeline.step_by_step, longest)
    _draw_lane(axes, 0, timeline.grouped, longest)
    axes.set_yticks([1, 0], ["each step planned alone", "all steps in one plan"])
    axes.tick_params(axis="y", length=0, labelcolor=_INK)
    axes.spines["left"].set_visible(False)
    axes.set_ylim(-0.5, 1.5)
    axes.set_xlim(0, longest * 1.22)
    axes.set_xlabel(
        f"host time of the refreshes of one round, us (batch {timeline.batch} in bucket {timeline.bucket}, "
        f"medians of {timeline.repeats})"
    )
    handles, labels = axes.get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": 3}
    axes.legend(by_label.values(), by_label, **place, frameon=False, fontsize=8, handlelength=1.0)


def _draw_lane(axes: Any, height: int, lane: Lane, longest: float) -> None:
    for segment in lane.segments:
        look = {"color": _COLORS[segment.mode], "edgecolor": "white", "linewidth": 1.2}
        axes.barh(height, segment.length, 0.5, segment.start, label=MODE_WORDS[segment.mode], **look)
        if segment.length > longest * 0.07:
            middle = segment.start + segment.length / 2
            axes.text(middle, height, segment.label, ha="center", va="center", fontsize=8, color="white")
    end = lane.segments[-1].start + lane.segments[-1].length
    words = f"{lane.launches} launches, {lane.total:.1f} us"
    axes.text(end + longest * 0.012, height, words, va="center", fontsize=8)


def _draw_tokens(axes: Any, samples: Sequence[tuple[float, int, int]]) -> None:
    thinned = samples[:: max(1, len(samples) // 4000)]
    times = [time for time, _, _ in thinned]
    live = [tokens / 1000 for _, tokens, _ in thinned]
    axes.fill_between(times, live, color=_COLORS["decode"], alpha=0.18, linewidth=0)
    axes.plot(times, live, color=_COLORS["decode"], linewidth=0.9)
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    axes.set_ylabel("live tokens, thousands")
    axes.set_xlabel("simulated seconds")
    most = max(requests for _, _, requests in samples)
    title = f"live tokens over {len(samples):,} rounds, up to {most} requests at once"
    axes.set_title(title, fontsize=9, loc="left", color=_INK)
