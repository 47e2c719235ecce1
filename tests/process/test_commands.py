"""The command `scaling`: help, completion, refusals, what it does not load, a closed terminal, hostile folders."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from scaling import __main__ as scaling
from scaling.records import store
from scaling.tools.bisect import flags as bisecting
from scaling.tools.check import flags as checking
from tests.support.started import SCALING, WITHIN_S, outlived, ran, run_of

ROOT = Path(__file__).parents[2]

# A folder that holds files and folders with the names of modules.

MINE = """
from scaling.frameworks.fake.strategy import Fake

class Mine(Fake):
    names = ("mine.rings:ring",)
    trainer = "scaling.frameworks.fake.strategy"
"""


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files that end whatever imports them, and a strategy from outside."""
    folder = tmp_path_factory.mktemp("crowded")
    for name in ("random", "json", "rich", "typer", "msgspec", "subprocess", "mpi4py"):
        (folder / f"{name}.py").write_text(f"raise RuntimeError('{name} of the working directory')\n")
    for name, text in (("numpy/__init__", "raise RuntimeError\n"), ("mine/__init__", ""), ("mine/rings", MINE)):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(text)
    return folder


@pytest.mark.parametrize("name", scaling.COMMANDS)
def test_each_command_shows_its_own_help_and_takes_no_file_for_a_module(crowded: Path, name: str) -> None:
    done = ran(*name.split(), "--help", cwd=crowded, program=SCALING)
    module = "scaling.run" if name == "run" else f"scaling {name}"
    assert done.stdout.startswith(f"Usage: python -m {module} ")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_sweep_takes_strategies_alone_from_the_working_directory(crowded: Path) -> None:
    quick = ("--rounds", "1", "--windows", "3", "--window-s", "0.01", "--kinds", "exchange", "--no-page")
    done = ran("--strategy", "mine.rings:ring,fake:a", *quick, cwd=crowded)
    assert done.returncode == 0, done.stderr
    found = {record.point.strategy for record in store.load(run_of(crowded))[1]}
    assert found == {"mine.rings:ring", "fake:a"}


@pytest.mark.parametrize("words", [["--help"], ["-h"], []])
def test_the_help_lists_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert scaling.main(words) == 0
    listed = capsys.readouterr().out
    assert all(f"\n  {name} " in listed for name in scaling.COMMANDS if " " not in name)


def test_a_typo_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert scaling.main(["chek"]) == 2
    assert capsys.readouterr() == ("", "scaling: error: chek: no such command; did you mean 'check'?\n")
    assert scaling.main(["--hlp"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_one_rank_of_a_launch_complains(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    assert scaling.main(["chek"]) == 2
    assert capsys.readouterr() == ("", "")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert scaling.main(["--version"]) == 0
    assert capsys.readouterr().out == f"{import_module('scaling').__version__}\n"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("scaling hist", ["history"]),
        ("scaling history --out", ["--output"]),
        ("scaling lab d", ["down"]),
        ("scaling run --batch-r", ["--batch-rule"]),
    ],
)
def test_a_shell_completes_commands_and_their_flags(line: str, found: list[str]) -> None:
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), scaling.COMPLETING: "complete_bash"}
    assert ran(cwd=ROOT, program=SCALING, **asked).stdout.split() == found


def test_the_script_of_a_shell_asks_for_it() -> None:
    """Typer asks which shell started the command."""
    command = ["bash", "-c", '"$0" -m scaling --show-completion; exit $?', sys.executable]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert f"{scaling.COMPLETING}=complete_bash" in shown


def test_the_console_script_is_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    name, _, target = setup["options.entry_points"]["console_scripts"].strip().partition(" = ")
    module, _, function = target.partition(":")
    monkeypatch.setattr(sys, "argv", [name, "--version"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert getattr(import_module(module), function)() == 0
    assert name == "scaling" and capsys.readouterr().out
    assert sys.path[-1] == ""


# `python -m scaling bisect` as a process of one rank: what it refuses, in one line.


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--strategy", "fake:a"), "this launch has 1 node, a search needs 3"),
        (("--strategy", "fake:a", "--noise", "0"), "--noise 0: not between 0 and 50 percent"),
        (("--strategy", "torch:glo"), "torch:gloo"),
        (("--world-sizes", "4"), "--world-sizes: no such flag"),
    ],
)
def test_one_line_exit_2_and_nothing_made(tmp_path: Path, argv: tuple[str, ...], words: str) -> None:
    done = ran("bisect", "--ranks", "1", *argv, cwd=tmp_path, program=SCALING)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("scaling bisect: error: ") and words in line
    assert list(tmp_path.iterdir()) == []


# A folder of another user. The kernel must refuse it: what Path makes of that depends on the Python.

# Root without the right to read everything.
BOUNDED = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("import", "{folder}/closed/a.log", "--output", "{folder}/new"), "closed/a.log: Permission denied"),
        (("run", "--ranks", "1", "--metrics", "{folder}/closed/a.prom"), "closed/a.prom: Permission denied"),
        (
            ("run", "--ranks", "1", "--data", "mnist", "--data-dir", "{folder}/closed/a"),
            "closed/a: Permission denied",
        ),
    ],
)
def test_a_closed_folder_is_named_as_such(tmp_path: Path, argv: tuple[str, ...], said: str) -> None:
    done = beside_closed(tmp_path, *argv)
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_closed_run_stands_in_the_history(tmp_path: Path) -> None:
    done = beside_closed(tmp_path, "history", "{folder}")
    assert done.returncode == 0 and "! closed: cannot be read" in done.stdout, done.stdout


def beside_closed(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    if BOUNDED and (
        shutil.which(BOUNDED[0]) is None or subprocess.run([*BOUNDED, "true"], check=False).returncode
    ):
        pytest.skip("root cannot give up its right to read everything: no setpriv, or no CAP_SETPCAP")
    (folder / "closed").mkdir(mode=0)
    words = [one.format(folder=folder) for one in argv]
    return subprocess.run(
        [*BOUNDED, sys.executable, *SCALING, *words],
        cwd=ROOT, capture_output=True, text=True, timeout=WITHIN_S, check=False,
    )  # fmt: skip


# What is not loaded where it is not needed: start-up is time, and frameworks change the process they are in.

FRAMEWORKS = {"torch", "torchvision", "tensorflow", "mxnet", "horovod"}
GATHER = """
from scaling.agent import environment
environment.host_with(())
"""


HELP = "from scaling.run.__main__ import main; assert main(['--help']) == 0"
SWEEPS = ("agent", "analysis", "frameworks", "hosts", "report", "sweep")


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import scaling.sweep.view.live", {"rich"}),
        ("from scaling.workloads.feeds.pictures import digits; digits(9, 9)", {"sklearn"}),
        ("from scaling.workloads import feeds", {"numpy"}),
        (GATHER, {*FRAMEWORKS, "mpi4py", "numpy"}),
        ("import scaling.tools.check.__main__", {*FRAMEWORKS, "rich", "typer", "scipy"}),
        ("import scaling.transport.zmq", {"asyncio", "ssl"}),
        (HELP, {*FRAMEWORKS, "numpy", "scipy", "psutil", "pynvml", "pyroute2", "sklearn",
                *(f"scaling.{name}" for name in SWEEPS)}),
    ],
    ids=["view", "digits", "list-of-data", "hosts", "check", "ZeroMQ", "help"],
)  # fmt: skip
def test_what_is_not_loaded(code: str, absent: set[str]) -> None:
    tell = f"{code}\nimport sys\nprint(*sys.modules, file=sys.stderr)"
    loaded = set(ran(cwd=ROOT, program=("-c", tell)).stderr.split())
    assert "scaling" in loaded
    assert not absent & loaded


# SIGHUP, of a terminal that closed, ends the preflight and a search as Ctrl-C does, and their help says so.

# Each says a line once it is led, and would go on for ever.
COMMANDS = {
    "scaling check": """
import sys, time
from scaling.tools.check import __main__ as check, prober
prober.watch = lambda _: time.sleep(3600)
sys.exit(check.main(["--ranks", "1"]))
""",
    "scaling bisect": """
import sys
from scaling.tools.bisect import __main__ as bisect, leading
def search(lead, asked):
    print("led", flush=True)
    while True:
        lead.mailbox.look()
leading.bisect = search
sys.exit(bisect.main(["--ranks", "1", "--strategy", "fake:a", "--device", "cpu"]))
""",
}


@pytest.mark.parametrize(("answer", "last", "code"), [("SIG_DFL", "HUP", 129), ("SIG_IGN", "TERM", 143)])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_closed_terminal_ends_a_command_but_not_with_nohup(
    tmp_path: Path, command: str, answer: str, last: str, code: int
) -> None:
    """UCX, which Open MPI loads, takes SIGHUP for itself and does nothing with it."""
    begin = f"import signal; signal.signal(signal.SIGHUP, signal.{answer}){COMMANDS[command]}"
    process = subprocess.Popen(
        [sys.executable, "-c", begin],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    ended, _, err = outlived(process, process.stdout.readline, last)
    assert ended == code
    assert err.startswith(f"{command}: SIG{last}: ended ") and err.count("\n") == 1


@pytest.mark.parametrize("flags", [checking, bisecting])
def test_the_help_names_its_exit_code(flags: ModuleType) -> None:
    assert flags.EPILOG.endswith(" 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP.")
