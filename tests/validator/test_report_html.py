"""The HTML report: numbers, structure, escaping, no reference to the outside, the same bytes again."""

import re
import shutil
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import builder
import pytest
import rfc8785
from browser import AVAILABLE, Browser

from validator.report.figure import draw, label
from validator.report.html import render_html
from validator.report.material import gather
from validator.report.plots import Interval, forest
from validator.validate import validate

VOID = {"meta", "link", "br"}
HOSTILE = "</title></style><script>alert(1)</script><img src=x onerror=alert(2)> {{ 7*7 }} \" ' & $\\alpha$ \u202e"


class Page(HTMLParser):
    """A page as elements, checked for being well-formed while it is read."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def render(*bundles: Path) -> str:
    return render_html([validate(bundle) for bundle in bundles], bundles)


@pytest.fixture(scope="module")
def host(fake_bundle: Path) -> str:
    return render(fake_bundle)


@pytest.fixture(scope="module")
def cuda(fake_cuda_bundle: Path) -> str:
    return render(fake_cuda_bundle)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builder.draft().seal(tmp_path_factory.mktemp("good") / "good")


def hostile_draft() -> Any:
    draft = builder.draft()
    for key in ("title", "question", "margin_rationale"):
        draft.protocol["protocol"][key] = HOSTILE
    for row in draft.tables["processes"]:
        environment = {
            "device": "host",
            "cpu": HOSTILE,
            "platform": HOSTILE,
            "python": "3.11.7",
            "packages": {HOSTILE: {"imported": HOSTILE}},
        }
        row["environment"] = rfc8785.dumps(environment).decode()
        row["environment_sha256"] = builder.sha(row["environment"])
        row["reason"] = HOSTILE
    return builder.relock(draft)


def kinds(text: str) -> list[str | None]:
    return [figure.get("data-kind") for figure in Page(text).all("figure")]


def test_verdict_lines_have_the_exact_numbers(host: str, cuda: str) -> None:
    text = Page(host).text
    assert "batch=1 superior 0.989211 (0.986457 to 0.991972) upper 0.991972 < 1.05 5 pairs" in text
    assert "batch=4 superior 0.989439 (0.986815 to 0.99207) upper 0.99207 < 1.05 5 pairs" in text
    text = Page(cuda).text
    assert "mib=8 superior 0.987717 (0.987172 to 0.988263) upper 0.988263 < 1.02 6 pairs" in text
    assert "mib=16 superior 0.987419 (0.987029 to 0.98781) upper 0.98781 < 1.02 6 pairs" in text


def test_every_section_is_there(host: str) -> None:
    headings = re.findall(r"<h3>(.*?)(?: <span|</h3>)", host)
    assert headings == [
        *("Reasons (1)", "Verdicts", "Ratios", "Gates", "Controls", "Latency distributions", "Latency over time"),
        *("Bandwidth", "All arms", "Environment", "Notes", "Check it again"),
    ]
    assert kinds(host) == [
        *(
            "forest",
            "processes",
            "controls",
            "controls",
            "distributions",
            "distributions",
            "timeline",
            "timeline",
            "bandwidth",
        ),
    ]


def test_tables_behind_the_figures(host: str, cuda: str) -> None:
    rows = re.findall(r"<tr><th scope=\"row\" class=\"left\">(.*?)</tr>", host)
    shown = [re.sub(r"(<[^>]+>)+", " ", row).strip() for row in rows]
    assert "batch=4, base 1.22622 1.96196 9.99112 9.98687" in shown
    assert "batch=1 0 99.0765 99.892 0.9918362" in shown
    assert sum(row.startswith("0 ") and row.split()[2] in ("base", "cand") for row in shown) == 2 * 2 * 3
    assert "1,048,576" in host
    assert re.search(r"SM clock \d+ to \d+ MHz, \d+ to \d+ °C, slowed down by hardware or heat in 0", cuda)
    assert "This machine gave no telemetry" in host
    assert "This machine gave no telemetry" not in cuda


def test_figures_are_accessible(cuda: str) -> None:
    page = Page(cuda)
    pictures = page.all("svg")
    assert len(pictures) == len(page.all("figure")) == 9
    identifiers = [value for _, attributes in page.elements if (value := attributes.get("id"))]
    assert len(identifiers) == len(set(identifiers))
    for picture in pictures:
        assert picture["role"] == "img"
        assert all(name in identifiers for name in str(picture["aria-labelledby"]).split())
    assert cuda.count("The numbers behind it") == 9
    assert "mib=8: 0.987717 [0.987172, 0.988263], superior" in cuda
    used = {str(item["href"]).removeprefix("#") for item in page.all("use")}
    assert used
    assert used <= set(identifiers)


def test_nothing_from_outside(host: str, cuda: str) -> None:
    for text in (host, cuda):
        page = Page(text)
        assert {tag for tag, _ in page.elements} & {
            "script",
            "iframe",
            "img",
            "image",
            "object",
            "embed",
            "base",
            "form",
        } == set()
        for _, attributes in page.elements:
            assert not [name for name in attributes if name.startswith("on") or name in ("src", "srcset", "action")]
            href = attributes.get("href")
            assert href is None or href.startswith(("#", "data:,"))
        assert not re.search(r"@import|url\((?!#)|https?:", text)
        assert "default-src 'none'" in str([item.get("content") for item in page.all("meta")])


def test_the_same_bundle_gives_the_same_bytes(fake_cuda_bundle: Path, cuda: str) -> None:
    assert render(fake_cuda_bundle) == cuda


def test_an_invalid_bundle_gives_reasons_first_and_marks_its_numbers(host: str) -> None:
    page = Page(host)
    assert "✓" not in page.text
    assert host.index("SYNTHETIC") < host.index("every number below is not to be relied on") < host.index("0.989211")
    assert "<em>Remedy:</em> measure on a real device." in host
    tagged = re.findall(r'<h3>([^<]+) <span class="tag">not to be relied on</span>', host)
    assert tagged == [
        *(
            "Verdicts",
            "Ratios",
            "Gates",
            "Controls",
            "Latency distributions",
            "Latency over time",
            "Bandwidth",
            "All arms",
        ),
    ]


def test_a_valid_bundle_is_not_marked(good: Path) -> None:
    text = render(good)
    assert "not to be relied on" not in text.split("</style>")[1]
    assert "<title>VALID: built</title>" in text
    assert "Reasons (" not in text


def test_how_to_check_it_again(host: str, fake_bundle: Path) -> None:
    assert f"<pre>validator report {fake_bundle}</pre>" in host
    for name in ("manifest.json", "samples.parquet"):
        assert builder.sha((fake_bundle / name).read_bytes()) in host


def test_hostile_strings_stay_strings(tmp_path: Path) -> None:
    bundle = hostile_draft().seal(tmp_path / "hostile")
    text = render(bundle)
    page = Page(text)
    assert page.all("script") == page.all("img") == []
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "{{ 7*7 }}" in page.text
    assert "\u202e" not in text
    assert page.text.count("\\u202e") >= 5


def test_hostile_names_stay_text_in_figures() -> None:
    name = "<b>&$x$_\\u202e \N{CJK UNIFIED IDEOGRAPH-6F22} style=#010101"
    row = Interval(name=name, words=name, ratio=1.1, lower=0.9, upper=None, unbounded=True, tone="open")
    text = draw(
        *(2.0, lambda figure: forest(figure, [row], margin=0.02, band=True)), title=name, description=name, prefix="p"
    )
    root = ET.fromstring(text)
    shown = [element.text for element in root.iter("text")]
    assert label(name) in shown
    assert name in shown
    assert root.findtext("title") == root.findtext("desc") == name
    assert {element.tag for element in root.iter()} == {
        "svg",
        "title",
        "desc",
        "g",
        "path",
        "defs",
        "use",
        "text",
        "clipPath",
        "rect",
    }


def test_several_bundles_stand_side_by_side(good: Path, fake_bundle: Path, tmp_path: Path) -> None:
    text = render(good, fake_bundle, tmp_path / "nowhere")
    page = Page(text)
    assert "Validator report: 3 bundles" in page.text
    assert [section.get("id") for section in page.all("section")] == ["b1-top", "b2-top", "b3-top"]
    assert "nothing is pooled over machines or runs" in page.text
    assert "COULD_NOT_CHECK" in page.text
    identifiers = [value for _, attributes in page.elements if (value := attributes.get("id"))]
    assert len(identifiers) == len(set(identifiers))


@pytest.mark.parametrize(
    "name", ["samples.parquet", "processes.parquet", "telemetry.parquet", "protocol.toml", "manifest.json"]
)
def test_a_lost_file_still_gives_a_page(fake_cuda_bundle: Path, tmp_path: Path, name: str) -> None:
    copy = shutil.copytree(fake_cuda_bundle, tmp_path / "copy")
    (copy / name).unlink()
    assert "INVALID" in Page(render(copy)).text


def test_material_is_that_of_the_numbers(fake_bundle: Path) -> None:
    report, material = validate(fake_bundle), gather(fake_bundle)
    assert report.numbers is not None
    for item in report.numbers.comparisons:
        pairs = material.ratios[(item.candidate, item.baseline, item.operating_point)]
        assert len(pairs) == item.pairs == 5
        product = 1.0
        for pair in pairs:
            product *= pair.ratio
        assert product ** (1 / 5) == pytest.approx(item.ratio, rel=1e-12)
    assert [len(spread.values_ns) for spread in material.spreads["batch=1"]] == [30] * 4
    assert [block.process for block in material.blocks["batch=1"]] == [p for p in range(5) for _ in range(6)]


def test_a_page_takes_less_than_five_seconds(fake_cuda_bundle: Path) -> None:
    begin = time.process_time()  # other work on the machine is none of its business
    render(fake_cuda_bundle)
    assert time.process_time() - begin < 5


needs_browser = pytest.mark.skipif(
    not AVAILABLE, reason="needs chromium and chromium-driver (apt-get install chromium chromium-driver)"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@needs_browser
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_in_a_real_browser(browser: Browser, cuda: str, tmp_path: Path, width: int, dark: bool) -> None:
    page = tmp_path / "page.html"
    page.write_text(cuda, encoding="utf-8")
    browser.requests()
    browser.log("browser")
    browser.open(page, width=width, dark=dark)
    inside, outside = browser.run("return [document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert inside == outside <= width
    browser.run("for (const item of document.querySelectorAll('details')) item.open = true")
    assert browser.run("return document.documentElement.scrollWidth") <= width
    boxes = browser.run(
        "return [...document.querySelectorAll('figure svg')].map(s => { const b = s.getBoundingClientRect();"
        " const t = s.querySelector('text').getBoundingClientRect(); return [b.left, b.right, b.height, t.width] })"
    )
    assert len(boxes) == 9
    assert all(left >= 0 and right <= width and height > 80 and text > 0 for left, right, height, text in boxes)
    ink, paper = browser.run(
        "const s = getComputedStyle(document.body); const l = c => c.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0);"
        "return [l(s.color), l(s.backgroundColor)]"
    )
    assert (ink > paper) is dark
    assert browser.log("browser") == []
    assert browser.requests() == [page.as_uri()]


@needs_browser
def test_hostile_strings_do_nothing_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "hostile.html"
    page.write_text(render(hostile_draft().seal(tmp_path / "hostile")), encoding="utf-8")
    browser.requests()
    browser.log("browser")
    browser.open(page, width=360)
    assert browser.run("return document.documentElement.scrollWidth") <= 360
    assert browser.run("return document.querySelectorAll('script, img').length") == 0
    assert browser.log("browser") == []
    assert browser.requests() == [page.as_uri()]
