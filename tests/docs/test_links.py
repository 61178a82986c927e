"""Every link inside the project leads somewhere, and every page can be found from the index."""

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, anchors, links, page_name


def _inner_links(path: Path) -> list[tuple[int, Path, str]]:
    found = []
    for line, target in links(path):
        if "://" not in target and not target.startswith("mailto:"):
            place, _, anchor = target.partition("#")
            found.append((line, (path.parent / place).resolve() if place else path, anchor))
    return found


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_links_of_the_page_lead_to_files_and_headings_that_exist(path: Path) -> None:
    broken = []
    for line, target, anchor in _inner_links(path):
        if not target.exists():
            broken.append(f"line {line}: there is no {target}")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            broken.append(f"line {line}: {target.name} has no heading #{anchor}")

    assert not broken, "\n".join(broken)


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]

    while waiting:
        page = waiting.pop()
        if page not in reached and page.suffix == ".md" and page.exists():
            reached.add(page)
            waiting += [target for _, target, _ in _inner_links(page)]

    assert {page_name(path) for path in set(PAGES) - reached} == set()
