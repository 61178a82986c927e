"""A report as Markdown, for documents that quote it."""

from benchmarks.results import Check, Report, Row, Section, per_item

__all__ = ["to_markdown"]


def to_markdown(report: Report) -> str:
    """One table a section, then its targets."""
    facts = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    parts = [f"holdfast {report.version}, {report.utc}, {report.repeat} repetitions in turn; {facts}."]
    for section in report.sections:
        parts.append(f"## {section.title}")
        parts.append(f"Skipped: {section.skipped}." if section.skipped else _table(section))
        if section.checks:
            parts.append("\n".join(map(_check, section.checks)))
        parts.extend(section.notes)
    return "\n\n".join(parts) + "\n"


def _table(section: Section) -> str:
    lines = [
        "| | who | median | best | per item | of the limit | (best) | slow-down | (best) | extra memory |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    return "\n".join([*lines, *map(_row, section.rows)])


def _row(found: Row) -> str:
    name = f"**{found.name}**" if found.role == "holdfast" else found.name
    shares = ["" if s is None else f"{s:.2f}" for s in (found.speed_of_limit_median, found.speed_of_limit_best)]
    slower = ["" if s is None else f"{s:+.1%}" for s in (found.slowdown_median, found.slowdown_best)]
    extra = "" if found.extra_bytes is None else f"{found.extra_bytes / 1e6:,.0f} MB"
    times = [f"{seconds * 1000:,.{0 if seconds >= 0.1 else 1}f} ms" for seconds in (found.median_s, found.best_s)]
    return "| " + " | ".join([found.group, name, *times, per_item(found), *shares, *slower, extra]) + " |"


def _check(check: Check) -> str:
    unit = f" {check.unit}" if check.unit else ""
    target = f"{check.relation} {check.target:,g}{unit}"
    return f"- {'✓' if check.met else '✗'} {check.what}: {check.found:,.2f}{unit} ({target})"
