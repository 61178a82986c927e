"""The report of a proof: one web page that needs nothing else, in the colours that the reader's system wants."""

import shlex
from collections.abc import Iterable, Sequence
from html import escape

from holdfast.core.clock import utc_text
from holdfast.core.errors import StorageError
from holdfast.core.version import __version__
from holdfast.policy.durations import words_of
from holdfast.proving.measuring import size_words
from holdfast.proving.verdict import DIFFERS, HARMLESS, IDENTICAL, Cause, Started, Verdict

__all__ = ["html_of", "write_report"]

_STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --dim: #5a6472; --back: #ffffff; --line: #d8dee4; --good: #1a7f37;
  --bad: #c0262d; --fair: #9a6700; --soft: #f4f6f8; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --dim: #9aa5b1; --back: #0f1419; --line: #30363d;
  --good: #4ac26b; --bad: #ff7b72; --fair: #d9a72a; --soft: #171c22; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
code, pre { font: 13px/1.45 ui-monospace, monospace; overflow-wrap: anywhere; }
pre { background: var(--soft); padding: .7rem; overflow-x: auto; }
p { margin: .3rem 0; } .dim { color: var(--dim); } .good { color: var(--good); } .bad { color: var(--bad); }
.fair { color: var(--fair); } .wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .25rem .8rem .25rem 0;
  border-bottom: 1px solid var(--line); vertical-align: top; } th { color: var(--dim); font-weight: 500; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.cause { border-left: 3px solid var(--fair); padding: .1rem 0 .1rem .9rem; margin: .8rem 0; }
svg { width: 100%; height: auto; } svg text { fill: var(--dim); font: 12px system-ui, sans-serif; }
svg .from { stroke: var(--good); } svg .bad { stroke: var(--bad); }
svg .dot { fill: var(--text); }
"""
_WORDS = {IDENTICAL: ("good", "Identical"), DIFFERS: ("bad", "Not identical")}
_ROW, _LEFT, _WIDTH, _TOP = 22, 90, 900, 8


def write_report(path: str, verdict: Verdict) -> None:
    """Write the page; a file that is there is replaced."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(html_of(verdict))
    except OSError as error:
        raise StorageError(
            f"the report {path} cannot be written: {error.strerror}", hint="choose another place", errno=error.errno
        ) from error


def html_of(verdict: Verdict) -> str:
    """The whole page."""
    style, word = _WORDS.get(verdict.answer, ("fair", "Not finished"))
    parts = [
        f'<h1 class="{style}">{word}</h1>',
        f"<p>{escape(_sentence(verdict))}</p>",
        f'<p class="dim"><code>{escape(shlex.join(verdict.command))}</code></p>',
        _differences(verdict),
        _causes(verdict.causes),
        _tail(verdict.tail),
        _timeline(verdict),
        _starts(verdict.starts),
        _remarks(verdict),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{word}: {escape(', '.join(verdict.runs))}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body></html>\n"
    )


def _sentence(verdict: Verdict) -> str:
    runs = ", ".join(verdict.runs)
    steps = f"steps {verdict.first_step} to {verdict.last_step}"
    struck = f"{verdict.interruptions} of {verdict.wanted} interruptions"
    if verdict.answer == IDENTICAL and verdict.unseen:
        return f"{runs}, {steps}: after {struck}, what was compared is what it was without them; see the remarks."
    if verdict.answer == IDENTICAL:
        return f"{runs}, {steps}: after {struck}, every bit of the state and every metric is what it was without them."
    if verdict.answer != DIFFERS:
        return f"{runs}, {steps}: identical after {struck}, as far as it came."
    if verdict.leaf:
        return f"{runs}, {steps}: {verdict.causes[0].what}."
    if verdict.undisturbed and verdict.causes[0].kind in HARMLESS:
        return f"{runs}, {steps}: {verdict.causes[0].what}. All else is identical after {struck}."
    if verdict.undisturbed:
        return f"{runs}, {steps}: two undisturbed runs differ at step {verdict.step} in {verdict.path}."
    if not verdict.step:
        return f"{runs}, {steps}: a resumed program does not come to its first step."
    when = "right after the restore of" if verdict.at == "restored" else "at"
    where = f" in {verdict.path}" if verdict.path else ""
    return f"{runs}, {steps}: the runs part {when} step {verdict.step}{where}."


def _differences(verdict: Verdict) -> str:
    if not verdict.differences:
        return ""
    rows = [
        (item.path, _without_digest(item.before), _without_digest(item.after), size_words(item))
        for item in verdict.differences
    ]
    more = f'<p class="dim">and {verdict.more_differences} more</p>' if verdict.more_differences else ""
    return "<h2>What differs</h2>" + _table(("leaf", "undisturbed", "now", "by how much"), rows, code=(0, 1, 2)) + more


def _without_digest(text: str) -> str:
    return "" if text.startswith("b3:") else text


def _causes(causes: Sequence[Cause]) -> str:
    if not causes:
        return ""
    return "<h2>Likely cause</h2>" + "".join(
        f'<div class="cause"><p><b>{escape(cause.kind)}</b> – {escape(cause.what)}</p>'
        + "".join(f'<p class="dim">{escape(text)}</p>' for text in cause.evidence)
        + (f"<p>→ {escape(cause.advice)}</p>" if cause.advice else "")
        + "</div>"
        for cause in causes
    )


def _tail(lines: Sequence[str]) -> str:
    return f"<h2>Its last lines</h2><pre>{escape(chr(10).join(lines))}</pre>" if lines else ""


def _timeline(verdict: Verdict) -> str:
    """The starts of the interrupted run, one below the other, over the steps."""
    starts = [start for start in verdict.starts if start.case == "interrupted"]
    if not starts:
        return ""
    first, last = verdict.first_step - 1, max(verdict.last_step, *(start.to_step or 0 for start in starts))

    def x(step: int) -> float:
        return round(_LEFT + (step - first) / max(1, last - first) * (_WIDTH - _LEFT - 20), 1)

    height = _TOP + _ROW * len(starts) + 24
    lines = []
    for row, start in enumerate(starts):
        y = _TOP + _ROW * row + _ROW // 2
        begin, end = x(max(first, start.from_step or first)), x(max(first, start.to_step or start.from_step or first))
        lines.append(f'<text x="0" y="{y + 4}">{escape(_start_name(start))}</text>')
        bar = "from" if start.outcome.startswith("equal") else "bad"
        lines.append(
            f'<line class="{bar}" x1="{begin}" x2="{max(end, begin + 2)}" y1="{y}" y2="{y}" stroke-width="6"/>'
        )
        if start.was_struck:
            words = escape(start.struck_words)
            lines.append(f'<circle class="dot" cx="{end}" cy="{y}" r="4"><title>{words}</title></circle>')
    lines.append(f'<text x="{x(first + 1)}" y="{height - 6}">step {verdict.first_step}</text>')
    lines.append(f'<text x="{_WIDTH - 20}" y="{height - 6}" text-anchor="end">{last}</text>')
    return (
        "<h2>The interrupted run</h2>"
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="the starts over the steps">{"".join(lines)}</svg>'
        '<p class="dim">A line is a start, from the step that it restored to the one it came to; red where it differs. '
        "A dot is a signal.</p>"
    )


def _start_name(start: Started) -> str:
    return f"start {start.number}"


def _starts(starts: Sequence[Started]) -> str:
    rows = [
        (
            start.case if start.case != "interrupted" else f"{start.number}: {start.why}",
            "" if start.from_step is None else str(start.from_step),
            "" if start.to_step is None else str(start.to_step),
            start.struck_words,
            f"{start.took_s:.1f} s" if start.took_s else "",
            start.outcome,
        )
        for start in starts
    ]
    head = ("start", "from step", "to step", "interrupted", "took", "compared")
    return "<h2>All starts</h2>" + _table(head, rows, numbers=(1, 2, 4))


def _remarks(verdict: Verdict) -> str:
    made = f"holdfast {__version__}, {utc_text(verdict.utc_s)}, seed {verdict.seed}, took {words_of(verdict.took_s)}"
    compared = f"{verdict.points} points with {verdict.leaves} leaves each were compared."
    machine = [f"{name} {text}" for name, text in verdict.versions]
    machine += [f"on {verdict.host}"] if verdict.host else []
    lines = [*verdict.remarks, compared, made, ", ".join(machine)]
    return "<h2>Remarks</h2>" + "".join(f'<p class="dim">{escape(line)}</p>' for line in lines if line)


def _table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, code: Sequence[int] = (), numbers: Sequence[int] = ()
) -> str:
    def cell(tag: str, index: int, text: str) -> str:
        shown = f"<code>{escape(text)}</code>" if tag == "td" and index in code and text else escape(text)
        return f"<{tag}{' class=number' if index in numbers else ''}>{shown}</{tag}>"

    def row(tag: str, texts: Sequence[str]) -> str:
        return "<tr>" + "".join(cell(tag, index, text) for index, text in enumerate(texts)) + "</tr>"

    body = "".join(row("td", texts) for texts in rows)
    return f'<div class="wide"><table>{row("th", head)}{body}</table></div>'
