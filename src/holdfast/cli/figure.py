"""The plot of a run's pace: for the terminal, as an SVG that we write ourselves, as a PNG where matplotlib is there."""

from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from holdfast.cli.chart import Chart, Mark, Point, Sign, nice_ticks, time_ticks
from holdfast.cli.table import Style
from holdfast.core.errors import UsageError, printable
from holdfast.engine.history import Ending
from holdfast.engine.pace_report import Pace, Report
from holdfast.engine.pace_words import share_words, time_words
from holdfast.engine.whole_file import whole_file

__all__ = ["pace_chart", "suffix_of_plot", "svg_of", "write_figure"]

_KILLED = Sign("×", "x", "killed", Style.RED, has_line=True)
_STOPPED = Sign("■", "#", "stopped itself", Style.CYAN, has_line=True)
_RESTARTED = Sign("↻", "r", "started again after it had ended", Style.CYAN, has_line=True)
_TROUBLE = Sign("!", "!", "sensors saw trouble", Style.YELLOW)
_SAVE_FAILED = Sign("o", "o", "a save failed", Style.RED)
_NEW_ATTEMPT = "a new attempt begins"

_ENDINGS = {Ending.KILLED: _KILLED, Ending.STOPPED: _STOPPED}

_WIDTH, _HEIGHT = 900, 540
_LEFT, _RIGHT = 78, 24
_MOST_COMMITS_DRAWN = 2000
_INK, _SOFT, _GRID = "#1f2933", "#616e7c", "#e4e7eb"
_LINE, _LATELY, _RUN, _LIMIT = "#0b69a3", "#8719e0", "#829ab1", "#3e4c59"
_RED, _AMBER, _PALE, _TEAL = "#ba2525", "#f7c948", "#fbe6a2", "#147d64"


def pace_chart(report: Report) -> Chart:
    """The interval over the running time; where none was chosen by measurement, what lay between checkpoints."""
    if report.now is not None:
        title = "Steps between checkpoints, as chosen, over the running time"
    else:
        title = "Steps between checkpoints, as they were made, over the running time"
    return Chart(title, _points(report), list(_marks(report)), report.running_s, dotted=_NEW_ATTEMPT)


def suffix_of_plot(path: str) -> str:
    """`.svg` or `.png`; UsageError where it is neither, or cannot be had here."""
    suffix = path[path.rfind(".") :].lower() if "." in path else ""
    if suffix not in (".svg", ".png"):
        raise UsageError(f"--plot {path}: a plot ends in .svg or .png", hint="for example --plot pace.svg")
    if suffix == ".png":
        try:
            import matplotlib.figure  # noqa: F401
        except ImportError as error:
            raise UsageError(
                f"--plot {path}: a .png takes matplotlib, which is not installed", hint=f"--plot {path[:-4]}.svg"
            ) from error
    return suffix


def write_figure(report: Report, path: str, *, title: str) -> None:
    """Write the plot; one that is there is replaced, since it can always be made again."""
    suffix = suffix_of_plot(path)
    with whole_file(path, replace=True) as file:
        if suffix == ".svg":
            file.write(svg_of(report, title=title).encode())
        else:
            _draw_png(report, title).savefig(file, format="png", dpi=120)


def _points(report: Report) -> list[Point]:
    points: list[Point] = [(attempt.at_s, None) for attempt in report.attempts]
    if report.now is not None:
        points += [(pace.at_s, None if pace.is_measuring else pace.interval_steps) for pace in report.changes]
    else:
        for before, commit in pairwise(report.commits):
            if commit.attempt == before.attempt and commit.step is not None and before.step is not None:
                gap = commit.step - before.step
                points.append((before.at_s, gap if gap > 0 else None))
        points += [
            (last.at_s, None) for last in {commit.attempt: commit for commit in report.commits}.values() if points
        ]
    return sorted(points, key=lambda point: point[0])


def _marks(report: Report) -> Iterator[Mark]:
    """The more important first: one place shows one of them."""
    for before, attempt in pairwise(report.attempts):
        yield Mark(_ENDINGS.get(before.ending, _RESTARTED), attempt.at_s)
    if report.attempts and (sign := _ENDINGS.get(report.attempts[-1].ending)) is not None:
        yield Mark(sign._replace(has_line=False), report.running_s)
    for at_s in report.failed_saves:
        yield Mark(_SAVE_FAILED, at_s)
    for begin_s, end_s in report.troubles():
        yield Mark(_TROUBLE, begin_s, end_s)


class _Panel(NamedTuple):
    """A part of the picture with axes of its own, and where values lie in it."""

    top: float
    bottom: float
    end_s: float
    high: float

    def x(self, at_s: float) -> float:
        return _LEFT + min(1.0, at_s / self.end_s) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return self.bottom - min(1.0, value / self.high) * (self.bottom - self.top)


def svg_of(report: Report, *, title: str) -> str:
    """The picture: the interval with what happened, below it the overhead against its limit."""
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    font = 'font-family="system-ui, Helvetica, Arial, sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>',
        f"<title>{_safe(title)}: how often checkpoints are made</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        _text(_LEFT, 28, title, size=16, weight="bold"),
    ]
    return "\n".join([*parts, *_svg_body(report), "</svg>"]) + "\n"


def _svg_body(report: Report) -> Iterator[str]:
    chart = pace_chart(report)
    values = [value for _, value in chart.points if value is not None]
    if not values or chart.end_s <= 0:
        yield _text(_LEFT, 60, "There is nothing to plot yet.", colour=_SOFT)
        return
    overheads = [p for p in report.paces if p.overhead_lately is not None or p.overhead_run is not None]
    ticks = nice_ticks(max(values), wanted=5)
    upper = _Panel(74, 330 if overheads else 470, chart.end_s, ticks[-1])
    yield _text(_LEFT, 50, chart.title, colour=_SOFT)
    yield from _trouble_areas(report, upper)
    yield from _axes(upper, [(tick, f"{tick:,.0f}") for tick in ticks], "steps", with_times=not overheads)
    yield from _commit_ticks(report, upper)
    yield _path(upper, chart.points, _LINE, width=2.5)
    panels = [upper]
    if overheads:
        limit = report.now.limit if report.now is not None else None
        shares = [s for p in overheads for s in (p.overhead_lately, p.overhead_run) if s is not None]
        high = min(1.0, max([*shares, limit or 0.0, 1e-4])) * 100
        percents = _percent_ticks(high)
        lower = _Panel(386, 470, chart.end_s, percents[-1])
        panels.append(lower)
        yield _text(_LEFT, 376, "Overhead", colour=_SOFT)
        yield from _trouble_areas(report, lower)
        yield from _axes(lower, [(tick, share_words(tick / 100)) for tick in percents], "", with_times=True)
        for name, colour in (("overhead_run", _RUN), ("overhead_lately", _LATELY)):
            for samples in _samples(overheads, name):
                yield _polyline(lower, samples, colour)
        if limit is not None:
            y = lower.y(limit * 100)
            yield f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="{_LIMIT}" stroke-dasharray="6 4"/>'
    yield from _events(report, panels)
    yield from _svg_legend(report, has_overhead=bool(overheads))


def _percent_ticks(high: float) -> list[float]:
    # Whole numbers of a unit that is small enough.
    unit = next(unit for unit in (1.0, 0.1, 0.01, 0.001) if high / unit >= 3 or unit == 0.001)
    return [tick * unit for tick in nice_ticks(high / unit, wanted=4)]


def _axes(panel: _Panel, ticks: Sequence[tuple[float, str]], unit: str, *, with_times: bool) -> Iterator[str]:
    for value, label in ticks:
        y = panel.y(value)
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="{_GRID}"/>'
        yield _text(_LEFT - 8, y + 4, label, anchor="end", colour=_SOFT)
    if unit:
        yield _text(_LEFT - 8, panel.top - 12, unit, anchor="end", colour=_SOFT)
    yield f'<line x1="{_LEFT}" y1="{panel.bottom}" x2="{_WIDTH - _RIGHT}" y2="{panel.bottom}" stroke="{_SOFT}"/>'
    if with_times:
        for at_s in time_ticks(panel.end_s, wanted=8):
            x = panel.x(at_s)
            yield f'<line x1="{x:.1f}" y1="{panel.bottom}" x2="{x:.1f}" y2="{panel.bottom + 5}" stroke="{_SOFT}"/>'
            yield _text(x, panel.bottom + 19, "0" if at_s == 0 else time_words(at_s), anchor="middle", colour=_SOFT)


def _trouble_areas(report: Report, panel: _Panel) -> Iterator[str]:
    for begin_s, end_s in report.troubles():
        x, width = panel.x(begin_s), max(2.0, panel.x(end_s) - panel.x(begin_s))
        yield (
            f'<rect x="{x:.1f}" y="{panel.top}" width="{width:.1f}" height="{panel.bottom - panel.top}" '
            f'fill="{_AMBER}" fill-opacity="0.35"/>'
        )


def _commit_ticks(report: Report, panel: _Panel) -> Iterator[str]:
    every = max(1, len(report.commits) // _MOST_COMMITS_DRAWN)
    moves = [f"M{panel.x(c.at_s):.1f} {panel.bottom}v-7" for c in report.commits[::every]]
    if moves:
        yield f'<path d="{"".join(moves)}" stroke="{_SOFT}" stroke-opacity="0.6" fill="none"/>'


def _path(panel: _Panel, points: Sequence[Point], colour: str, *, width: float) -> str:
    """A curve of steps, interrupted where there is no value."""
    moves: list[str] = []
    drawing = False
    for index, (at_s, value) in enumerate(points):
        until_s = points[index + 1][0] if index + 1 < len(points) else panel.end_s
        if value is not None:
            y = panel.y(value)
            moves.append(f"V{y:.1f}" if drawing else f"M{panel.x(at_s):.1f} {y:.1f}")
            moves.append(f"H{panel.x(until_s):.1f}")
        drawing = value is not None
    return f'<path d="{"".join(moves)}" stroke="{colour}" stroke-width="{width}" fill="none" stroke-linejoin="round"/>'


def _samples(paces: Sequence[Pace], name: str) -> Iterator[list[tuple[float, float]]]:
    """What is known of a share, in per cent, attempt by attempt: it is measured now and then, not always."""
    for _, group in groupby(paces, key=lambda pace: pace.attempt):
        known = [(pace.at_s, 100 * share) for pace in group if (share := getattr(pace, name)) is not None]
        if known:
            yield known


def _polyline(panel: _Panel, samples: Sequence[tuple[float, float]], colour: str) -> str:
    places = [f"{panel.x(at_s):.1f} {panel.y(value):.1f}" for at_s, value in samples]
    dots = "".join(f"M{place}h0" for place in places)
    return (
        f'<path d="M{"L".join(places)}" stroke="{colour}" stroke-width="1.5" fill="none"/>'
        f'<path d="{dots}" stroke="{colour}" stroke-width="5" stroke-linecap="round"/>'
    )


def _events(report: Report, panels: Sequence[_Panel]) -> Iterator[str]:
    upper = panels[0]
    for before, attempt in pairwise(report.attempts):
        colour = _RED if before.failed else _TEAL
        x = upper.x(attempt.at_s)
        for panel in panels:
            yield (
                f'<line x1="{x:.1f}" y1="{panel.top}" x2="{x:.1f}" y2="{panel.bottom}" stroke="{colour}" '
                f'stroke-width="1.5" stroke-dasharray="3 3"><title>{_safe(before.ending)}</title></line>'
            )
        yield _text(x, upper.top - 6, f"attempt {attempt.number}", anchor="middle", colour=colour)
    if report.attempts and report.attempts[-1].failed:
        yield _cross(upper.x(report.running_s), upper.top + 6, _RED)
    for at_s in report.failed_saves:
        yield _circle(upper.x(at_s), upper.bottom - 14)
    for stop in report.stops:
        x = min(upper.x(stop.at_s), _WIDTH - _RIGHT - 5)
        yield (
            f'<rect x="{x - 5:.1f}" y="{upper.top + 2}" width="10" height="10" fill="{_TEAL}">'
            f"<title>{_safe(stop.why)}</title></rect>"
        )


def _cross(x: float, y: float, colour: str) -> str:
    return f'<path d="M{x - 5:.1f} {y - 5}l10 10m0 -10l-10 10" stroke="{colour}" stroke-width="2.5" fill="none"/>'


def _circle(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="none" stroke="{_RED}" stroke-width="1.5"/>'


def _svg_legend(report: Report, *, has_overhead: bool) -> Iterator[str]:
    """What is in the picture, and only that."""
    x, y = float(_LEFT), float(_HEIGHT - 30)
    for words, is_shown, shape in _legend_entries(report, has_overhead=has_overhead):
        if not is_shown:
            continue
        width = 26 + 6.4 * len(words)
        if x + width > _WIDTH - _RIGHT:
            x, y = float(_LEFT), y + 18
        yield shape(x, y)
        yield _text(x + 26, y + 4, words, colour=_SOFT)
        x += width + 20


def _legend_entries(report: Report, *, has_overhead: bool) -> list[tuple[str, bool, Callable[[float, float], str]]]:
    def line(colour: str, width: float, dashes: str = "") -> Callable[[float, float], str]:
        style = f'stroke="{colour}" stroke-width="{width}"' + (f' stroke-dasharray="{dashes}"' if dashes else "")
        return lambda x, y: f'<path d="M{x:.1f} {y:.1f}h20" {style}/>'

    def area(colour: str, width: int) -> Callable[[float, float], str]:
        return lambda x, y: (
            f'<rect x="{x + 10 - width / 2:.1f}" y="{y - 5}" width="{width}" height="10" fill="{colour}"/>'
        )

    def comb(x: float, y: float) -> str:
        return f'<path d="M{x + 5:.1f} {y + 4}v-8m5 8v-8m5 8v-8" stroke="{_SOFT}" stroke-opacity="0.6"/>'

    killed = [attempt.failed for attempt in report.attempts]
    has_lately = any(pace.overhead_lately is not None for pace in report.paces)
    has_limit = has_overhead and report.now is not None and report.now.limit is not None
    return [
        ("interval", True, line(_LINE, 2.5)),
        ("checkpoints", bool(report.commits), comb),
        ("overhead lately", has_lately, line(_LATELY, 2)),
        ("overhead in all", has_overhead, line(_RUN, 2)),
        ("limit", has_limit, line(_LIMIT, 1.5, "6 4")),
        ("killed, then restarted", any(killed[:-1]), line(_RED, 1.5, "3 3")),
        ("restarted", not all(killed[:-1]), line(_TEAL, 1.5, "3 3")),
        ("killed", any(killed[-1:]), lambda x, y: _cross(x + 10, y, _RED)),
        ("sensors saw trouble", bool(report.troubles()), area(_PALE, 20)),
        ("stopped itself", bool(report.stops), area(_TEAL, 10)),
        ("a save failed", bool(report.failed_saves), lambda x, y: _circle(x + 10, y)),
    ]


def _text(
    x: float, y: float, text: str, *, size: int = 12, weight: str = "", anchor: str = "", colour: str = _INK
) -> str:
    more = (f' font-weight="{weight}"' if weight else "") + (f' text-anchor="{anchor}"' if anchor else "")
    sized = f' font-size="{size}"' if size != 12 else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}"{sized}{more}>{_safe(text)}</text>'


def _safe(text: str) -> str:
    return escape(printable(text))


def _draw_png(report: Report, title: str) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    chart = pace_chart(report)
    overheads = [p for p in report.paces if p.overhead_lately is not None or p.overhead_run is not None]
    figure = Figure(figsize=(9, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    ratios = [3, 1] if overheads else [1]
    axes = figure.subplots(len(ratios), 1, sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
    # matplotlib would read a dollar sign as the beginning of a formula.
    figure.suptitle(printable(title).replace("$", r"\$"), x=0.02, ha="left", weight="bold")
    _draw_steps(axes[0], chart.points, chart.end_s, color=_LINE, linewidth=2.5, label="interval")
    axes[0].set_ylabel("steps between checkpoints")
    if overheads:
        _draw_overheads(axes[1], report, overheads)
    for axis in axes:
        axis.set_ylim(bottom=0)
        axis.set_xlim(0, chart.end_s or 1)
        axis.grid(axis="y", color=_GRID)
        axis.spines[["top", "right"]].set_visible(False)
        _draw_events(axis, report)
    _draw_signs(axes[0], report)
    ticks = time_ticks(chart.end_s, wanted=8) if chart.end_s > 0 else [0.0]
    axes[-1].set_xticks(ticks, ["0" if at_s == 0 else time_words(at_s) for at_s in ticks])
    axes[-1].set_xlabel("running time")
    entries = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(entries.values(), entries, loc="outside lower left", fontsize="small", frameon=False, ncols=5)
    return figure


def _draw_steps(axis: Any, points: Sequence[Point], end_s: float, **style: Any) -> None:
    times_s = [at_s for at_s, _ in points] + [end_s]
    values = [float("nan") if value is None else value for _, value in points]
    axis.plot(times_s, [*values, values[-1] if values else float("nan")], drawstyle="steps-post", **style)


def _draw_overheads(axis: Any, report: Report, overheads: Sequence[Pace]) -> None:
    shown = (("overhead_run", "overhead in all", _RUN), ("overhead_lately", "overhead lately", _LATELY))
    for name, label, colour in shown:
        for samples in _samples(overheads, name):
            times_s, shares = zip(*samples, strict=True)
            axis.plot(times_s, shares, color=colour, marker=".", label=label)
    if report.now is not None and report.now.limit is not None:
        axis.axhline(100 * report.now.limit, color=_LIMIT, linestyle="--", label="limit")
    axis.set_ylabel("overhead, %")


def _draw_events(axis: Any, report: Report) -> None:
    """What goes from top to bottom."""
    for begin_s, end_s in report.troubles():
        axis.axvspan(begin_s, end_s, color=_AMBER, alpha=0.35, linewidth=0, label="sensors saw trouble")
    for before, attempt in pairwise(report.attempts):
        colour, label = (_RED, "killed, then restarted") if before.failed else (_TEAL, "restarted")
        axis.axvline(attempt.at_s, color=colour, linestyle=":", linewidth=1.5, label=label)


def _draw_signs(axis: Any, report: Report) -> None:
    """What has a sign of its own, near the top or the bottom."""
    died = [report.running_s] if report.attempts and report.attempts[-1].failed else []
    every = max(1, len(report.commits) // _MOST_COMMITS_DRAWN)
    for times_s, height, label, style in (
        ([commit.at_s for commit in report.commits[::every]], 0.015, "checkpoints", {"marker": "|", "color": _SOFT}),
        (report.failed_saves, 0.06, "a save failed", {"marker": "o", "color": _RED, "markerfacecolor": "none"}),
        ([stop.at_s for stop in report.stops], 0.97, "stopped itself", {"marker": "s", "color": _TEAL}),
        (died, 0.97, "killed", {"marker": "x", "color": _RED, "markeredgewidth": 2.5}),
    ):
        if times_s:
            heights, across = [height] * len(times_s), axis.get_xaxis_transform()
            axis.plot(times_s, heights, transform=across, linestyle="", label=label, clip_on=False, **style)
