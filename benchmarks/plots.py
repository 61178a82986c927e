"""A report as one picture."""

from pathlib import Path

from benchmarks.results import Report, Row, Section

__all__ = ["plot"]

_COLOURS = {"limit": "#9aa5b1", "verified limit": "#c9d1d9", "holdfast": "#0b7285", "peer": "#e8a33d"}
_WIDTH_IN = 9.0
_BAR_IN = 0.26
_HEAD_IN = 0.9


def plot(report: Report, path: Path) -> bool:
    """Draw all sections that have rows; False where matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    sections = [section for section in report.sections if section.rows]
    if not sections:
        return False
    heights = [_HEAD_IN + _BAR_IN * len(section.rows) for section in sections]
    figure, axes = plt.subplots(
        len(sections), 1, figsize=(_WIDTH_IN, sum(heights)), height_ratios=heights, squeeze=False, layout="constrained"
    )
    for axis, section in zip(axes[:, 0], sections, strict=True):
        _draw(axis, section)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True


def _draw(axis: object, section: Section) -> None:
    """One bar a row, from the top; the whisker ends at the best repetition."""
    for position, found in enumerate(section.rows):
        axis.barh(position, found.median_s * 1000, color=_COLOURS[found.role], height=0.75)
        axis.plot([found.best_s * 1000], [position], marker="|", color="black", markersize=7)
    axis.set_yticks(range(len(section.rows)), [_label(found, section) for found in section.rows], fontsize=7)
    axis.invert_yaxis()
    # Rows that differ a thousandfold are compared by their order of magnitude; the others by their length.
    medians = [found.median_s for found in section.rows]
    if max(medians) > 50 * min(medians):
        axis.set_xscale("log")
    axis.set_xlabel("milliseconds: bar = median, mark = best", fontsize=7)
    axis.tick_params(axis="x", labelsize=7)
    axis.set_title(section.title, fontsize=9, loc="left")
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _label(found: Row, section: Section) -> str:
    if len({row.name for row in section.rows}) == 1:
        return found.group
    return (
        found.name
        if len({row.group for row in section.rows}) in (1, len(section.rows))
        else f"{found.group}: {found.name}"
    )
