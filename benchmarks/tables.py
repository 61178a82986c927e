"""A report as tables on the terminal."""

from rich.console import Console
from rich.table import Table

from benchmarks.results import Check, Report, Row, Section, per_item

__all__ = ["print_machine", "print_section"]

_STYLES = {"limit": "dim", "verified limit": "dim", "holdfast": "bold", "peer": ""}


def print_machine(console: Console, report: Report) -> None:
    """What was measured, and on what."""
    facts = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    console.print(f"holdfast {report.version}: {report.repeat} repetitions in turn; {facts}", style="dim")


def print_section(console: Console, section: Section) -> None:
    """Rows, then targets."""
    console.print()
    console.print(section.title, style="bold underline")
    if section.skipped:
        console.print(f"skipped: {section.skipped}", style="yellow")
        return
    console.print(_rows_table(section))
    for check in section.checks:
        console.print(_check_line(check))
    for note in section.notes:
        console.print(note, style="dim")
    console.print(f"measured in {section.took_s:.0f} s", style="dim")


def _rows_table(section: Section) -> Table:
    has = {
        field: any(getattr(found, field) is not None for found in section.rows)
        for field in ("items", "speed_of_limit_median", "slowdown_median", "extra_bytes")
    }
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("")
    table.add_column("who")
    for name in (
        *("median", "best"),
        *(("per item",) if has["items"] else ()),
        *(("of the limit", "(best)") if has["speed_of_limit_median"] else ()),
        *(("slow-down", "(best)") if has["slowdown_median"] else ()),
        *(("extra memory",) if has["extra_bytes"] else ()),
    ):
        table.add_column(name, justify="right")
    last_group = None
    for found in section.rows:
        if last_group not in (None, found.group):
            table.add_section()
        table.add_row(found.group if found.group != last_group else "", *_cells(found, has), style=_STYLES[found.role])
        last_group = found.group
    return table


def _cells(found: Row, has: dict[str, bool]) -> list[str]:
    cells = [found.name, _time(found.median_s), _time(found.best_s)]
    if has["items"]:
        cells.append(per_item(found))
    if has["speed_of_limit_median"]:
        cells += [
            "" if value is None else f"{value:.2f}"
            for value in (found.speed_of_limit_median, found.speed_of_limit_best)
        ]
    if has["slowdown_median"]:
        cells += ["" if value is None else f"{value:+.1%}" for value in (found.slowdown_median, found.slowdown_best)]
    if has["extra_bytes"]:
        cells.append("" if found.extra_bytes is None else f"{found.extra_bytes / 1e6:,.0f} MB")
    return cells


def _time(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms" if seconds < 0.1 else f"{seconds * 1000:,.0f} ms"


def _check_line(check: Check) -> str:
    mark = "[green]✓[/green]" if check.met else "[red]✗[/red]"
    return f" {mark} {check.what}: {check.found:,.2f} {check.unit}".rstrip() + (
        f"  [dim]({check.relation} {check.target:,g} {check.unit}".rstrip() + ")[/dim]"
    )
