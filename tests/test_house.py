"""What holds for the whole tree: who imports whom, what is never called, and that the pages name what exists."""

from __future__ import annotations

import ast
import re
import subprocess
from fnmatch import fnmatch
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry

from penstock_consumers.metrics import ConsumerMetrics
from penstock_producers.evaluate.metrics import EvaluationMetrics
from penstock_producers.metrics import ProducerMetrics
from penstock_schemas.service import Health

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
COMPONENTS = {
    "schemas": ROOT / "schemas" / "penstock_schemas",
    "producers": ROOT / "producers" / "penstock_producers",
    "consumers": ROOT / "consumers" / "penstock_consumers",
}
NEVER_IMPORTED = {
    "schemas": {"penstock_producers", "penstock_consumers", "torch", "gymnasium"},
    "producers": {"penstock_consumers"},
    "consumers": {"penstock_producers", "torch", "gymnasium"},
}
# A command's wiring may import what its audit compares: replaying an episode needs a store and an env.
WIRING = {COMPONENTS["consumers"] / "cli" / name: {"penstock_producers"} for name in ("replay.py", "recompute.py")}
# The reader for torch is a room of its own: who has torch imports it by name, and nothing else of the package does.
TORCH = "penstock_consumers.replay.torch"
WIRING |= {source: {"torch"} for source in (COMPONENTS["consumers"] / "replay" / "torch").glob("*.py")}
UNSAFE = {
    *("pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"),
    *("eval", "exec", "torch.load", "torch.save", "torch.jit.load", "numpy.load", "numpy.save", "pandas.read_pickle"),
}
REGISTRY_HOSTS = (
    r"pypi\.org",
    r"pypi\.python\.org",
    r"files\.pythonhosted\.org",
    r"download\.pytorch\.org",
    r"repo\d?\.maven\.(apache\.)?org",
    r"registry\.npmjs\.org",
    r"proxy\.golang\.org",
    r"(static\.|index\.)?crates\.io",
    r"conda\.anaconda\.org",
)

PAGES = [
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"),
    *sorted(page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").glob("*.md")),
]
# What a metric's samples add to the name of its family; those of the others are told in the page of metrics.
SAMPLE = {"counter": "_total", "info": "_info"}
# Stands in a page for what it leaves out of a name.
GAP = "…"


def imports(tree: ast.AST) -> Iterator[str]:
    """Every import as a dotted name, inside functions and for type checkers only too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def uses(tree: ast.AST) -> Iterator[str]:
    """Every import, and every name with its attributes, under the name that it was imported by."""
    yield from imports(tree)
    bound = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            first, dot, rest = ast.unparse(node).partition(".")
            yield f"{bound.get(first, first)}{dot}{rest}"


def unsafe(source: str) -> set[str]:
    """What is used of `UNSAFE`."""
    used = {prefix for name in uses(ast.parse(source)) for prefix in accumulate(name.split("."), "{}.{}".format)}
    return used & UNSAFE


def tracked() -> list[str]:
    """The repository's files, those not committed yet too."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S603 - no input
    return sorted(name for name in listed.split("\0") if (ROOT / name).is_file())


def named_paths(page: str) -> Iterator[str]:
    """What stands in backticks in running text and looks like a path of this repository."""
    running = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    folders = {name.partition("/")[0] for name in tracked() if "/" in name}
    folders |= {package.name for package in COMPONENTS.values()}
    for word in re.findall(r"`([\w./*-]+)`", running):
        inside = "/" in word and word.partition("/")[0] in folders
        if inside or re.search(r"\w\.(py|toml|xml|ya?ml|md)$", word):
            yield word


def named_tests(page: str) -> list[str]:
    """The tests that a page's tables name, in part and without `test_`."""
    rows = "\n".join(re.findall(r"^\|.*\|$", page, re.MULTILINE))
    return [word for word in re.findall(r"`([\w…]+)`", rows) if GAP in word]


def is_a_test(name: str, sources: str) -> bool:
    """Whether a source defines a test of this name; a gap stands for anything."""
    pattern = name.replace(GAP, r"\w*")
    return re.search(rf"\bdef test_{pattern}\(", sources) is not None


def named_metrics(page: str) -> list[str]:
    """The metrics that a page names in whole, without their labels."""
    return re.findall(rf"`(penstock_(?:build|producer|consumer|evaluation)_\w+)(?![\w{GAP}])", page)


def exported() -> list[str]:
    """Every metric that a process shows, once for each kind of process."""
    registries = [CollectorRegistry() for _ in range(3)]
    producer, consumer, evaluation = registries
    ProducerMetrics(producer, Health(clock=lambda: 0.0, beat_limit=1.0))
    ConsumerMetrics(consumer)
    EvaluationMetrics(evaluation)
    families = [family for registry in registries for family in registry.collect()]
    return [f"{family.name}{SAMPLE.get(family.type, '')}" for family in families]


def exists(path: str, files: list[str]) -> bool:
    """Whether a file or folder has this path, or ends with it, from a folder's border on; `*` stands for anything."""
    wanted = path.rstrip("/")
    places = {str(place) for name in files for place in (PurePosixPath(name), *PurePosixPath(name).parents)}
    return any(fnmatch(f"/{place}", f"*/{wanted}") for place in places)


@pytest.mark.parametrize("component", COMPONENTS)
def test_components_depend_inward_only(component: str) -> None:
    sources = list(COMPONENTS[component].rglob("*.py"))
    assert sources
    for source in sources:
        roots = {name.partition(".")[0] for name in imports(ast.parse(source.read_text()))}
        assert not roots & NEVER_IMPORTED[component] - WIRING.get(source, set()), source


def test_only_the_reader_for_torch_imports_what_needs_torch() -> None:
    rooms = {source.parent for source, allowed in WIRING.items() if allowed == {"torch"}}
    assert rooms == {COMPONENTS["consumers"] / "replay" / "torch"}
    others = [source for source in COMPONENTS["consumers"].rglob("*.py") if source.parent not in rooms]
    found = [source for source in others for name in imports(ast.parse(source.read_text())) if name.startswith(TORCH)]
    assert found == []


@pytest.mark.parametrize("component", COMPONENTS)
def test_no_package_unpickles_or_evaluates(component: str) -> None:
    for source in COMPONENTS[component].rglob("*.py"):
        assert not unsafe(source.read_text()), source


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle", {"pickle"}),
        ("def late():\n    from marshal import loads", {"marshal"}),
        ("import torch as t\nt.load('weights')", {"torch.load"}),
        ("from torch import load", {"torch.load"}),
        ("import numpy as np\nnp.load('x', allow_pickle=True)", {"numpy.load"}),
        ("eval('1')", {"eval"}),
        ("import torch\ntorch.nn.Module().eval()\nmodule.eval()\nspec.load()", set()),
    ],
)
def test_unsafe_calls_are_seen_whatever_they_are_called(source: str, found: set[str]) -> None:
    assert unsafe(source) == found


def test_no_file_names_a_package_registry() -> None:
    hosts = re.compile("|".join(REGISTRY_HOSTS))
    found = {name: match[0] for name in tracked() if (match := hosts.search((ROOT / name).read_text(errors="replace")))}
    assert found == {}


def test_every_exemption_from_a_check_has_its_reason() -> None:
    exemption = re.compile(r"# (?:ruff: )?(?:noqa(?:: [A-Z0-9, ]+)?|type: ignore(?:\[[\w, -]+\])?)(?P<reason>.*)")
    bare = []
    for name in tracked():
        before = ""
        for number, line in enumerate((ROOT / name).read_text().splitlines() if name.endswith(".py") else (), start=1):
            match = exemption.search(line)
            if match and not re.search(r"\w{3,}", match["reason"]) and not before.startswith("#"):
                bare.append(f"{name}:{number}: {line.strip()}")
            before = line.lstrip()
    assert not bare, "\n".join(bare)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_only_paths_that_exist(page: str) -> None:
    assert (ROOT / page).stat().st_size > 0
    files = tracked()
    assert [path for path in named_paths((ROOT / page).read_text()) if not exists(path, files)] == []


def test_a_path_that_is_gone_is_seen() -> None:
    page = "`deploy/local/run.py` `schemas/` `log/kafka.py` `penstock_schemas/gone.py` `deploy/gone` `a/b` `gone.py`"
    files = tracked()
    assert [path for path in named_paths(page) if not exists(path, files)] == [
        "penstock_schemas/gone.py",
        "deploy/gone",
        "gone.py",
    ]


def test_a_page_of_promises_names_only_tests_that_exist() -> None:
    sources = "\n".join((ROOT / name).read_text() for name in tracked() if re.search(r"\btest_\w+\.py$", name))
    named = named_tests((ROOT / "docs" / "exactly-once.md").read_text())
    assert len(named) > 15
    assert [name for name in named if not is_a_test(name, sources)] == []


def test_a_test_that_is_gone_is_seen() -> None:
    page = "`running…`\n| a promise | `a_late_put…`, `…of_others…`; `test_x.py`: `gone…`, `whole` |\n"
    assert named_tests(page) == ["a_late_put…", "…of_others…", "gone…"]
    source = "def test_a_late_put_of_others_is_refused() -> None:"
    assert [name for name in named_tests(page) if not is_a_test(name, source)] == ["gone…"]


def test_the_page_of_metrics_names_each_of_them_once_and_no_other() -> None:
    assert sorted(named_metrics((ROOT / "docs" / "metrics.md").read_text())) == sorted(set(exported()))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_only_metrics_that_there_are(page: str) -> None:
    assert set(named_metrics((ROOT / page).read_text())) <= set(exported())


def test_a_metric_that_is_gone_is_seen() -> None:
    page = "`penstock_producer_gone_total{kind}` `penstock_consumer_gone` `penstock_producer_on_…` `penstock_consumers`"
    assert named_metrics(page) == ["penstock_producer_gone_total", "penstock_consumer_gone"]
