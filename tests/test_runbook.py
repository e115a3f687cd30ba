"""The runbook quotes what a consumer says, and misses no kind of error that it raises."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock_schemas import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "runbook.md").read_text()
CONSUMERS = ROOT / "consumers" / "penstock_consumers"
# What a consumer process runs, down to the log's clients.
SOURCES = [
    *CONSUMERS.rglob("*.py"),
    *(ROOT / "schemas" / "penstock_schemas" / "log").glob("*.py"),
    *(ROOT / "schemas" / "penstock_schemas" / "service").glob("*.py"),
    ROOT / "schemas" / "penstock_schemas" / "store_url.py",
]
# Only a learner's, a tool's or a publisher's business.
NOT_A_CONSUMERS = {"PolicyError", "PolicyRejectedError", "NoClaimError"}
# In which a difference from one time to the next is written as %d, or stands for itself in a page.
GAP = "…"


def texts(tree: ast.AST) -> Iterator[str]:
    """Every text in a source, with a gap for each value that is put in."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)):
                yield re.sub(r"%[dsrg]", GAP, text)
            case ast.JoinedStr(values=values):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else GAP for part in values)


def quotes() -> list[str]:
    """What the page quotes, a paragraph each."""
    return [
        re.sub(r"\n?> ?", " ", quote).strip().replace("`", "")
        for quote in re.findall(r"(?:^>.*\n?)+", PAGE, re.MULTILINE)
    ]


def said(quote: str, sources: list[str]) -> bool:
    """Whether a source has a text with all pieces of a quote, in their order and near the same gaps."""
    pieces = [piece for piece in (part.strip() for part in quote.split(GAP)) if len(piece) > 1]
    pattern = re.compile(".*?".join(map(re.escape, pieces)), re.DOTALL)
    return any(pattern.search(source) for source in sources)


def raised(source: Path) -> set[str]:
    """The kinds of our errors that a source raises or makes."""
    made = {
        node.func.id
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return {name for name in made if isinstance(getattr(errors, name, None), type)}


def known() -> list[str]:
    return [text.replace("`", "") for source in SOURCES for text in texts(ast.parse(source.read_text()))]


def test_every_error_that_a_consumer_raises_is_in_the_runbook() -> None:
    kinds = set().union(*map(raised, SOURCES)) - NOT_A_CONSUMERS
    assert {"BadStreamError", "CorruptStoreError", "FencedError", "StoreMismatchError", "TopicError"} <= kinds
    assert {kind for kind in kinds if f"`{kind}`" not in PAGE} == set()


def test_every_error_that_the_runbook_names_is_one() -> None:
    named = set(re.findall(r"`(\w+Error)`", PAGE))
    assert {name for name in named if not hasattr(errors, name)} == set()


def test_what_the_runbook_quotes_is_what_is_said() -> None:
    assert len(quotes()) > 30
    sources = known()
    assert [quote for quote in quotes() if not said(quote, sources)] == []


@pytest.mark.parametrize("source", ["worker.py", "held.py", "service.py", "breaker.py", "dead_letters.py"])
def test_what_stops_a_consumer_is_quoted(source: str) -> None:
    """The modules that are the consumer alone: each of their errors has its paragraph."""
    for node in ast.walk(ast.parse((CONSUMERS / source).read_text())):
        match node:
            case ast.Raise(exc=ast.Call(func=ast.Name(id=kind), args=[text, *_])) if hasattr(errors, kind):
                (told,) = list(texts(ast.Expression(body=text)))[:1]
                assert any(said(quote, [told]) for quote in quotes()), told


def test_every_section_says_whether_the_consumer_goes_on() -> None:
    _, *sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    heads = {title: text.split("\n\n")[0] for title, _, text in (section.partition("\n") for section in sections)}
    assert heads.pop("What tools say")
    assert [title for title, head in heads.items() if not re.search(r"stops|[Gg]oes on", head)] == []


def test_a_quote_that_nobody_says_is_seen() -> None:
    assert said("topic …: it was recreated", ["topic …: its id is …: it was recreated; begin"])
    assert not said("topic …: it was recreated", ["topic …: it is recreated"])
    assert not said("recreated … topic", ["topic …: it was recreated"])
