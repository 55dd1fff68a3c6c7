"""A report's page as a browser reads it."""

from html.parser import HTMLParser
from xml.etree import ElementTree

from loadtest.report.html import render_html
from loadtest.results.result import Result


class Page(HTMLParser):
    """What a browser would have to fetch, and the text it would show."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in {"src", "href", "srcset", "action"}]
        self.fetched += [tag] * (tag in {"script", "link", "iframe", "object", "embed", "img"})

    def handle_data(self, data: str) -> None:
        self.text += data


def read_plots(result: Result) -> list[ElementTree.Element]:
    """The plots of a result's page, which are well-formed XML."""
    page = render_html(result)
    return [ElementTree.fromstring(f"<svg{rest.partition('</svg>')[0]}</svg>") for rest in page.split("<svg")[1:]]


def styled(plot: ElementTree.Element, style: str) -> list[ElementTree.Element]:
    return [element for element in plot.iter() if element.get("class") == style]
