"""The site's sources, its checks and its versions, without building it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from website.__main__ import main
from website.diagrams import as_table
from website.links import faults
from website.publish import MOST_VERSIONS, publish, version_of
from website.stage import DOCS, ROOT, SiteError, as_toml, front, pages_of, place, prepared, stage


@pytest.fixture
def site(tmp_path: Path) -> Callable[..., Path]:
    """A built site with one good page and what a test puts on it."""

    def make(body: str = "", head: str = "", **files: str) -> Path:
        made = tmp_path / "site"
        (made / "guide").mkdir(parents=True)
        (made / "index.html").write_text('<a href="guide/#part">a guide</a>')
        (made / "guide" / "index.html").write_text(f'<head>{head}</head><h2 id="part">A part</h2><a href="..">up</a>{body}')
        for name, text in files.items():
            (made / name.replace("_", ".")).write_text(text)
        return made

    return make


def test_a_good_site_has_no_faults(site: Callable[..., Path]) -> None:
    """Links to pages, folders and anchors of the site, and to other places, are right; so is Markdown that is shown as code."""
    good = '<a href="https://example.com">x</a><a href="mailto:a@example.com">y</a><pre><code>\n```\n[a](b)\n</code></pre>'
    assert faults(site(good, style_css="a { background: url('data:image/png;base64,x') }")) == []


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="../missing/">x</a>', "links to ../missing/, which is not there"),
        ('<a href="../#nowhere">x</a>', "links to ../#nowhere, but that page has no such anchor"),
        ('<a href="#nowhere">x</a>', "links to #nowhere, but that page has no such anchor"),
        ('<img src="missing.png">', "links to missing.png, which is not there"),
        ('<script src="https://cdn.example/a.js"></script>', "fetches https://cdn.example/a.js from elsewhere"),
        ('<img src="//cdn.example/a.png">', "fetches //cdn.example/a.png from elsewhere"),
        ("<style>@import 'https://cdn.example/a.css'</style>", "fetches https://cdn.example/a.css from elsewhere"),
        ('<div data-md-component="source"></div>', "fetches https://api.github.com from elsewhere"),
        ("<p>Lists:\n- one</p>", "has Markdown in its text: - one"),
        ("<p>see [a](b)</p>", "has Markdown in its text: see [a](b)"),
        ("<p>\n::: toolbus.Call</p>", "has Markdown in its text: ::: toolbus.Call"),
    ],
)
def test_a_fault_of_a_page_is_told(body: str, fault: str, site: Callable[..., Path]) -> None:
    """A broken link, a request to another server, and Markdown that was not read are told with the page's name."""
    assert faults(site(body)) == [f"guide/index.html: {fault}"]


def test_fonts_and_styles_from_elsewhere_are_told(site: Callable[..., Path]) -> None:
    """Fonts that a page's head or a style sheet asks for are requests to other servers as well."""
    head = '<link rel="preconnect" href="https://fonts.example">'
    assert faults(site(head=head, style_css="a { src: url(https://fonts.example/a.woff2) }")) == [
        "guide/index.html: fetches https://fonts.example from elsewhere",
        "style.css: fetches https://fonts.example/a.woff2 from elsewhere",
    ]


def test_a_site_without_pages_is_a_fault(tmp_path: Path) -> None:
    """An empty site is none."""
    assert faults(tmp_path) == [f"{tmp_path} has no pages"]


def test_links_out_of_the_documentation_lead_into_the_repository() -> None:
    """A link to a file or folder outside of docs/ becomes the repository's address at the ref; links within docs/ stay relative."""
    page = DOCS / "how-to" / "deploy.md"
    text = "[a](../../deploy) [b](../../CHANGELOG.md#x) [c](../README.md) [`d`](services.md#e) [f](https://x.example) `[g](h)`"
    assert prepared(text, page, page, "v1.0.0") == (
        "[a](https://github.com/toolbus/toolbus/tree/v1.0.0/deploy) [b](https://github.com/toolbus/toolbus/blob/v1.0.0/CHANGELOG.md#x) "
        "[c](../index.md) [`d`](services.md#e) [f](https://x.example) `[g](h)`"
    )
    with pytest.raises(SiteError, match=r"docs/how-to/deploy.md links to h, which is not there. Correct the link."):
        prepared("[g](h)", page, page, "v1.0.0")


def test_code_is_left_as_it_is() -> None:
    """Links and lists within blocks of code are not touched, and a list gets the empty line that the site needs before it."""
    page = DOCS / "README.md"
    code = "```\n[a](b)\ntext\n- item\n```\n"
    assert prepared(f"{code}text\n- item\n- item\n", page, page, "main") == f"{code}text\n\n- item\n- item\n"


def test_a_diagram_of_states_becomes_a_table() -> None:
    """Each step is a row; diagrams of other kinds, and lines that are no steps, stay code."""
    assert as_table("stateDiagram-v2\n    [*] --> A\n    A --> [*]: done, or not\n") == (
        "\n| From | To | When |\n|---|---|---|\n| *start* | `A` |  |\n| `A` | *end* | done, or not |\n\n"
    )
    assert as_table("flowchart LR\n    A --> B\n") is None
    assert as_table("stateDiagram-v2\n    note right of A\n") is None


def test_the_front_page_is_the_readme_and_the_index() -> None:
    """The site begins with the README's beginning and goes on with the index; its links start from docs/."""
    text = front()
    assert text.startswith("# toolbus\n")
    assert "](tutorial/getting-started.md)" in text
    assert "## A tool" not in text
    assert "# Documentation" not in text.splitlines()


def test_staging_writes_every_page_and_the_navigation(tmp_path: Path) -> None:
    """All pages of docs/ are staged, and the configuration has the navigation."""
    stage(tmp_path / "work")
    pages = tmp_path / "work" / "pages"
    assert {place(each) for each in DOCS.rglob("*.md")} == {str(each.relative_to(pages)) for each in pages.rglob("*.md")}
    assert (pages / "assets" / "favicon.svg").is_file()
    assert 'nav = [{ "toolbus" = "index.md" }' in (tmp_path / "work" / "zensical.toml").read_text()


def test_a_navigation_is_written_as_toml() -> None:
    """Titles and sections may hold any character, and the pages come in the order of the index."""
    nav = [{'The "first"': "a.md"}, {"More": [{"Ä": "b.md"}]}]
    assert as_toml(nav) == '[{ "The \\"first\\"" = "a.md" }, { "More" = [{ "Ä" = "b.md" }] }]'
    assert pages_of(nav) == ["a.md", "b.md"]


@pytest.mark.parametrize(("tag", "version"), [("v1.4.2", "1.4"), ("1.4.0", "1.4"), ("dev", "dev"), ("v10.0.0", "10.0")])
def test_releases_that_differ_in_their_last_number_share_a_version(tag: str, version: str) -> None:
    """A tag is documented as its first two numbers, and the development version as itself."""
    assert version_of(tag) == version


@pytest.mark.parametrize("tag", ["", "main", "v1", "v1.2", "v1.2.3rc1", "../x", "v1.2.3/../.."])
def test_other_tags_are_refused(tag: str) -> None:
    """A tag that is no release names what may be given."""
    with pytest.raises(SiteError, match=r"is no version. Give a release such as"):
        version_of(tag)


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """A built site of one page."""
    (tmp_path / "built").mkdir()
    (tmp_path / "built" / "index.html").write_text("page")
    return tmp_path / "built"


def listed(pages: Path) -> list[tuple[str, list[str]]]:
    """Return the versions that the selector offers, with their aliases."""
    return [(each["version"], each["aliases"]) for each in json.loads((pages / "versions.json").read_text())]


def test_versions_are_published_side_by_side(tmp_path: Path, built: Path) -> None:
    """Each version keeps its folder, the newest release is ``latest``, also when an older one is published after it."""
    pages = tmp_path / "pages"
    pages.mkdir()
    assert publish(built, pages, "dev") == ["dev"]
    assert listed(pages) == [("dev", ["latest"])]
    for tag, text in (("v1.9.0", "nine"), ("v1.10.0", "ten"), ("v1.9.1", "nine again")):
        (built / "index.html").write_text(text)
        publish(built, pages, tag)
    assert listed(pages) == [("dev", []), ("1.10", ["latest"]), ("1.9", [])]
    said = {name: (pages / name / "index.html").read_text() for name in ("dev", "1.10", "1.9", "latest")}
    assert said == {"dev": "page", "1.10": "ten", "1.9": "nine again", "latest": "ten"}
    assert 'url=latest/"' in (pages / "index.html").read_text()


def test_publishing_again_changes_nothing(tmp_path: Path, built: Path) -> None:
    """A repeated publication gives the same files, and other files of the branch stay."""
    pages = tmp_path / "pages"
    (pages / "other").mkdir(parents=True)
    publish(built, pages, "v1.0.0")
    before = {each: each.read_bytes() for each in pages.rglob("*") if each.is_file()}
    publish(built, pages, "v1.0.0")
    assert {each: each.read_bytes() for each in pages.rglob("*") if each.is_file()} == before
    assert (pages / "other").is_dir()


def test_old_versions_are_removed(tmp_path: Path, built: Path) -> None:
    """The published site keeps a bounded number of versions, the newest ones."""
    pages = tmp_path / "pages"
    pages.mkdir()
    for number in range(MOST_VERSIONS + 3):
        versions = publish(built, pages, f"v1.{number}.0")
    assert versions == [f"1.{number}" for number in range(MOST_VERSIONS + 2, 2, -1)]
    assert not (pages / "1.2").exists()
    assert (pages / "1.3").is_dir()


def test_a_site_that_was_not_built_is_not_published(tmp_path: Path) -> None:
    """A missing site is told with what to do, and the published pages are left alone."""
    (tmp_path / "pages").mkdir()
    with pytest.raises(SiteError, match=r"has no index.html. Build the site first: make docs"):
        publish(tmp_path / "none", tmp_path / "pages", "v1.0.0")
    assert list((tmp_path / "pages").iterdir()) == []


def test_a_wrong_tag_is_one_line_before_anything_is_built(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command refuses a tag that is no version with one line and exit code 1, and makes no folder."""
    assert main(["publish", "nonsense", "--into", str(tmp_path / "pages")]) == 1
    assert capsys.readouterr().err == "error: 'nonsense' is no version. Give a release such as v1.4.2, or dev.\n"
    assert not (tmp_path / "pages").exists()


def test_the_workflow_publishes_by_the_command() -> None:
    """The workflow builds on every change, publishes pushes with the job's own token alone, and has no other secret."""
    text = (ROOT / ".github" / "workflows" / "docs.yml").read_text("utf-8")
    assert "make docs" in text
    assert 'python -m website publish "$NAME" --into pages' in text
    assert "secrets." not in text
