"""HTML by functions: whatever is not HTML already is escaped on its way into a page."""

import dataclasses
import html
from collections.abc import Iterable, Sequence

from experiments.report.style import STYLE

_VOID = ("input", "meta")


class Html(str):
    """Text that is HTML already. All other text is escaped where it meets this one."""

    __slots__ = ()


Content = Html | str | int | float | None
"""What an element may hold; None is nothing."""

NOTHING = Html()
DASH = "\N{EN DASH}"
"""What stands where there is no number."""


def join(parts: Iterable[Content]) -> Html:
    """One after the other, text escaped."""
    return Html("".join(_escaped(part) for part in parts))


def element(name: str, /, *content: Content, **attributes: Content) -> Html:
    """One element.

    Args:
      name: of the element.
      *content: what is in it.
      **attributes: underscores become hyphens, except at the end, where they only avoid Python's
        own words (`class_`); those that are None are left out.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(content)}</{name}>")


def paragraph(*content: Content, **attributes: Content) -> Html:
    """A paragraph of text."""
    return element("p", *content, **attributes)


def bullets(items: Iterable[Content]) -> Html:
    """An unordered list; nothing if there are no items."""
    written = [element("li", item) for item in items]
    return element("ul", *written) if written else NOTHING


def code(text: str) -> Html:
    """A name, a path, a command within a sentence."""
    return element("code", text)


def text_block(text: str) -> Html:
    """Text as it is, line by line; long lines are wrapped."""
    return element("pre", text)


def fold(summary: Content, *content: Content) -> Html:
    """Something that is only shown when asked for."""
    return element("details", element("summary", summary), *content)


def heading(text: Content) -> Html:
    """The title of a part of a section."""
    return element("h3", text)


@dataclasses.dataclass(frozen=True)
class Heat:
    """A cell of a table whose ground is the darker the larger the share in it is.

    Attributes:
      share: in [0, 1], or None if there is none.
    """

    share: float | None


def table(
    label: str,
    header: Sequence[Content],
    rows: Iterable[Sequence[Content | Heat]],
    text: bool = False,
) -> Html:
    """A table in a box of its own that scrolls where the page is narrow.

    Args:
      label: what it shows, for those who cannot see it.
      header: names of the columns.
      rows: cells; the first of each row is its name.
      text: the cells hold sentences and may be wrapped, rather than numbers.
    """
    head = element("tr", *(element("th", cell, scope="col") for cell in header))
    body = [
        element("tr", _cell(row[0], "th", scope="row"), *(_cell(cell) for cell in row[1:]))
        for row in rows
    ]
    return element(
        "div",
        element(
            "table",
            element("thead", head),
            element("tbody", *body),
            class_="text" if text else "numbers",
        ),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label=label,
    )


def tiles(facts: Iterable[tuple[Content, Content, Content]]) -> Html:
    """A few large figures, each (name, figure, remark)."""
    return element(
        "div",
        *(
            element(
                "div",
                element("div", name, class_="name"),
                element("div", figure, class_="figure"),
                element("div", remark, class_="remark"),
                class_="tile",
            )
            for name, figure, remark in facts
        ),
        class_="tiles",
    )


def charts(*figures: Html) -> Html:
    """Figures beside each other where there is room."""
    return element("div", *figures, class_="charts")


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a page that its contents list.

    Attributes:
      name: for links; letters and hyphens.
      title: as it is read.
      content: what stands below the title.
    """

    name: str
    title: str
    content: Html


def document(title: str, introduction: Html, sections: Sequence[Section]) -> Html:
    """A whole page that needs no other file.

    Args:
      title: of the page.
      introduction: what stands above the list of contents.
      sections: in order.
    """
    links = [
        element("li", element("a", section.title, href=f"#{section.name}")) for section in sections
    ]
    written = [
        element("section", element("h2", section.title), section.content, id=section.name)
        for section in sections
    ]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(STYLE)),
    )
    body = element(
        "body",
        element("header", element("h1", title), introduction),
        element("nav", element("ol", *links), aria_label="Contents"),
        element("main", *written),
    )
    return Html(f"<!doctype html>\n{element('html', head, body, lang='en')}\n")


def files_section(names: Iterable[str]) -> Html:
    """Where the charts of a page are as files."""
    listed = [join([code(name), " "]) for name in names]
    return join(
        [
            paragraph(
                "Every chart is a picture in ",
                code("figures/NAME.png"),
                ", and its numbers are in ",
                code("data/NAME.csv"),
                ", beside this page. The names:",
            ),
            paragraph(*listed),
        ]
    )


def percent(share: float | None, digits: int = 1) -> str:
    """A share in words; a dash if there is none."""
    return DASH if share is None else f"{100 * share:.{digits}f}%"


def number(value: float | None, digits: int = 2, sign: bool = False) -> str:
    """A number in words; a dash if there is none."""
    return DASH if value is None else f"{value:{'+' if sign else ''},.{digits}f}"


def duration(seconds: float) -> str:
    """A time in words."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _cell(content: Content | Heat, name: str = "td", **attributes: Content) -> Html:
    if not isinstance(content, Heat):
        return element(name, content, **attributes)
    if content.share is None:
        return element(name, DASH, **attributes)
    style = f"--heat: {content.share:.3f}"
    return element(name, percent(content.share), class_="heat", style=style, **attributes)


def _escaped(content: Content) -> str:
    if content is None:
        return ""
    return content if isinstance(content, Html) else html.escape(str(content))
