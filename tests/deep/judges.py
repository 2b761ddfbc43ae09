"""What the tests say of a mutant: pytest in forked children.

A warm process has loaded pytest, pyarrow and the rest, but not the validator. A child traces all judges once and writes
which lines each of them runs; the bundles that its session fixtures built stay, and later children take them over;
a test that did not pass there is no judge. For each module one more process loads those modules of the validator that do
not import it; its children load the others, the mutated one from memory, run the tests that reach the changed lines, and
end at the first failure.
"""

import gc
import importlib
import importlib.util
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from enum import IntEnum
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import coverage
import pytest
from hypothesis import settings
from reach import FILES, ROOT, Reach, imports, independent, paths

WITHOUT = ("cacheprovider", "xdist", "faulthandler", "hypothesispytest", "terminal")
ARGUMENTS = ["-o", "addopts=", "--assert=plain", *(f"-pno:{name}" for name in WITHOUT), *FILES]
LOADING = "loading"
MEMORY = 16 << 30
"""Bytes of address space of a child."""


class Outcome(IntEnum):
    """What became of a mutant; exit codes of its child."""

    SURVIVED = 0
    FAILED = 1
    NOT_LOADED = 2
    INCOMPLETE = 3
    TIMEOUT = 4
    NOT_REACHED = 5


def in_a_warm_process(work: Callable[[pytest.Session], None]) -> None:
    """Load what the judges import except the validator, start pytest, and call ``work`` instead of collecting."""

    class Hook:
        @pytest.hookimpl(tryfirst=True)
        def pytest_collection(self, session: pytest.Session) -> bool:
            work(session)
            return True

    os.chdir(ROOT)
    settings.load_profile("ci")  # the same examples for every mutant, and none is written down
    sys.path[:0] = [str(ROOT), *sorted({str(ROOT / Path(name).parent) for name in FILES})]
    for path in (*(ROOT / "validator").rglob("*.py"), *map(ROOT.joinpath, FILES)):
        for name in sorted(imports(path)):
            found = importlib.util.find_spec(name.split(".")[0])
            beside = found is not None and str(found.origin).startswith(str(ROOT / "tests"))  # it may use the validator
            if found is not None and name.split(".")[0] != "validator" and not beside:
                importlib.import_module(name)
    assert not [name for name in sys.modules if name.split(".")[0] == "validator"]
    pytest.main(ARGUMENTS, plugins=[Hook()])


def survey(session: pytest.Session, folder: Path) -> Reach:
    """Trace all judges; in a folder with the file of a former survey only read that."""
    file = folder / "reach.json"
    if not file.exists():
        _in_child(session, _Tracer(file), folder / "bundles")
    return Reach(**json.loads(file.read_text("utf-8")))


def outcomes(
    session: pytest.Session, module: str, cases: Iterator[tuple[str, Sequence[str]]], reach: Reach, folder: Path
) -> Iterator[Outcome]:
    """Try mutated sources of one module, each with its tests; a process of its own is needed for every module."""
    for name in independent(module):
        importlib.import_module(name)
    assert module not in sys.modules
    gc.freeze()
    for source, tests in cases:
        yield _in_child(session, _Judge(module, source, tests, reach), folder) if tests else Outcome.NOT_REACHED


def _in_child(session: pytest.Session, tests: "_Tests", folder: Path) -> Outcome:
    """Collect and run tests in a forked child that writes its files to a folder."""
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            return Outcome(os.WEXITSTATUS(status))
        return Outcome.TIMEOUT if os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM) else Outcome.FAILED
    outcome = Outcome.NOT_LOADED
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        session.config.pluginmanager.register(tests)
        tests.begin()
        session.perform_collect()
        outcome = Outcome.INCOMPLETE
        session.config.hook.pytest_runtestloop(session=session)
        outcome = tests.end()
    finally:
        os._exit(outcome)


class _Tests:
    """A plugin for the tests of one child."""

    def begin(self) -> None:
        """Before the collection."""

    def end(self) -> Outcome:
        """After the last test."""
        return Outcome.SURVIVED


class _Tracer(_Tests):
    """Writes which lines each test runs and where the bundles of the session fixtures are."""

    def __init__(self, file: Path) -> None:
        self.file, self.reach = file, Reach()
        self.trace = coverage.Coverage(data_file=None, config_file=False, source=[str(ROOT / "validator")])
        self.asked: dict[str, list[str]] = {}
        self.context, self.start = LOADING, 0.0

    def begin(self) -> None:
        self.trace.start()
        self.trace.switch_context(LOADING)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out the bombs, which take minutes."""
        items[:] = [item for item in items if "bomb" not in item.nodeid]

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Any:
        """A fixture of several tests is traced for itself: each test that asks for it reaches its lines."""
        if fixturedef.scope == "function":
            return (yield)
        outer, self.context = self.context, _label(fixturedef)
        self.trace.switch_context(self.context)
        value = yield
        self.context = outer
        self.trace.switch_context(self.context)
        if fixturedef.scope == "session" and isinstance(value, Path):
            self.reach.bundles[fixturedef.argname] = str(value)
        return value

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: Any) -> None:
        several = item._fixtureinfo.name2fixturedefs.values()
        self.asked[item.nodeid] = [item.nodeid, *(_label(each) for fixtures in several for each in fixtures)]
        self.context, self.start = item.nodeid, time.process_time()
        self.trace.switch_context(self.context)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.reach.seconds[report.nodeid] = round(time.process_time() - self.start, 4)

    def end(self) -> Outcome:
        self.trace.stop()
        data = self.trace.get_data()
        ran: dict[str, dict[str, set[int]]] = {}
        for path, module in paths().items():
            for line, contexts in data.contexts_by_lineno(str(path)).items():
                for context in contexts:
                    ran.setdefault(context, {}).setdefault(module, set()).add(line)
        self.reach.loading = {module: sorted(lines) for module, lines in ran[LOADING].items()}
        for test, contexts in self.asked.items():
            reached: dict[str, set[int]] = {}
            for context in contexts:
                for module, lines in ran.get(context, {}).items():
                    reached.setdefault(module, set()).update(lines)
            self.reach.lines[test] = {module: sorted(lines) for module, lines in reached.items()}
        self.file.write_text(json.dumps(asdict(self.reach)), "utf-8")
        return Outcome.SURVIVED


def _label(fixture: Any) -> str:
    return f"fixture {fixture.baseid}::{fixture.argname}"


class _Given(_Tests):
    """Tests that take over the bundles of the survey."""

    def __init__(self, reach: Reach) -> None:
        self.reach = reach

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Path | None:
        if fixturedef.scope != "session" or fixturedef.argname not in self.reach.bundles:
            return None
        value = Path(self.reach.bundles[fixturedef.argname])
        fixturedef.cached_result = (value, fixturedef.cache_key(request), None)
        return value


class _Judge(_Given):
    """Serves the mutated module and ends the child at the first failure."""

    def __init__(self, module: str, source: str, tests: Sequence[str], reach: Reach) -> None:
        super().__init__(reach)
        self.module, self.source = module, source
        self.rank = {test: number for number, test in enumerate(tests)}
        self.wanted = {test.split("[")[0] for test in tests}
        self.passed = 0

    def begin(self) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        sys.meta_path.insert(0, _Mutated(self.module, self.source))
        gc.disable()
        self._limit(30.0)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Look into no file and (below) into no function that holds no judge."""
        files = {test.split("::")[0] for test in self.wanted}
        return True if collection_path.is_file() and str(collection_path.relative_to(ROOT)) not in files else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self, collector: pytest.Collector, name: str) -> list[pytest.Item] | None:
        return [] if f"{collector.nodeid}::{name}" not in self.wanted else None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            os._exit(Outcome.NOT_LOADED)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((item for item in items if item.nodeid in self.rank), key=lambda i: self.rank[i.nodeid])

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._limit(5 * self.reach.seconds[item.nodeid] + 10.0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os._exit(Outcome.FAILED)
        self.passed += report.when == "call" and report.passed

    def end(self) -> Outcome:
        return Outcome.SURVIVED if self.passed == len(self.rank) else Outcome.INCOMPLETE

    @staticmethod
    def _limit(seconds: float) -> None:
        """A limit of processor time, so that a busy machine kills no mutant; ten times that on the clock."""
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, 10 * seconds)


class _Mutated(MetaPathFinder, Loader):
    """Imports one module from a source in memory."""

    def __init__(self, module: str, source: str) -> None:
        self.module, self.source = module, source

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        if fullname != self.module:
            return None
        return importlib.util.spec_from_loader(fullname, self, origin=fullname)

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.source, f"<mutant of {self.module}>", "exec", dont_inherit=True), module.__dict__)
