"""Each command line that a page or a help text shows runs to its end, with stand-ins for clusters and engines."""

from __future__ import annotations

import json
import re
import shutil
import struct
import sys
from pathlib import Path

import pytest

from tests.support import compared_runs, documented, predicted_runs, scripted_records, stand_ins
from tests.support.compared_runs import without_noise
from tests.support.documented import REPOSITORY, Command
from tests.support.stand_ins import shell

# Placeholders that mean another thing by place, and what their lines need to leave the repository alone.
SUBSTITUTES = {
    "report FILE.tgz --signed-by allowed": "report signed.tgz --signed-by allowed",
    "certify --reference reference.toml": "certify --reference like.toml",
    "certify --reference h200": "certify --reference like.toml",
    "--for 2h": "--for 1s",
    "predict RUN": "predict MEASURED",
    "--check FILE": "--check check.json",
    "--prices FILE": "--prices prices.toml",
    "--tool NAME": "--tool horovod",
    "LOG:8 --rate": "RATES:8 --rate",
    "scaling.run --against BASE": "scaling.run --against RUN",
    "--data fashion-mnist": "--data fashion-mnist --data-dir fashion-mnist",
    "WHEEL": "some.whl",
    "mine.py:ring,torch:gloo": "torch:gloo",
    "mine.py:Net": "scaling/frameworks/pytorch/example_model.py:Encoder",
    "tests/published.json tests/published-nodes.json": "published.json published-nodes.json --output priors.toml",
}
PRICES = """\
currency = "USD"
[[price]]
name = "node"
match = { cpu = "*" }
devices = 4
per_hour = { on_demand = 12.24 }
network = "tcp:10"
"""
KEYS = (
    """ssh-keygen -q -t ed25519 -f certifier -N ''; echo "certifier@example.org $(cat certifier.pub)" > allowed"""
)
# A reference of the stand-in cluster, and a signed archive, made before they are used.
CERTIFIED = "mpirun -np 16 python -m scaling certify --results certified"
REFERENCE = "python -m scaling report certified/*-certify --format reference -o like.toml"
# Labs and launch/ run in tests/system, ranks by hand in test_zmq.py, scripts in tests/frameworks/script.
ELSEWHERE = re.compile(
    r"--rank R| -- train\.py|scaling lab|scaling\.tools\.lab|\./launch/(?:install|local|test)\b"
)
COMMANDS = [one for one in documented.commands() if not ELSEWHERE.search(one.line)]
LAUNCHED = re.compile(r".*\bscaling[. ]run\b")


def fashion_mnist(folder: Path) -> None:
    """Black pictures, as many as were published."""
    folder.mkdir()
    for prefix, count in (("train", 60_000), ("t10k", 10_000)):
        pictures = struct.pack(">4I", 2051, count, 28, 28) + bytes(count * 28 * 28)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(pictures)
        labels = struct.pack(">2I", 2049, count) + bytes(n % 10 for n in range(count))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(labels)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks as a clone does in which runs, logs and prices lie under the names that pages use."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("launch", "hostfiles", "containers", "tests", "setup.cfg"):
        (folder / name).symlink_to(REPOSITORY / name)
    # The package itself is imported from the repository: in a clone it would be no git revision.
    (folder / "scaling/frameworks/pytorch").mkdir(parents=True)
    for name in ("example_one_by_one.py", "example_model.py"):
        example = f"scaling/frameworks/pytorch/{name}"
        (folder / example).symlink_to(REPOSITORY / example)
    (folder / ".venv").symlink_to(sys.prefix)  # what a command of launch/ takes where none is active
    stand_ins.install(folder)
    (folder / "prices.toml").write_text(PRICES)
    (folder / "sweep.toml").write_text('strategy = ["torch:gloo"]\n')
    (folder / "FILE.txt").write_text("The quick brown fox jumps over the lazy dog. " * 2000)
    shutil.copy(REPOSITORY / "tests/unit/importers/samples/horovod_n4.log", folder / "LOG")
    for name, count in (("A.log", 8), ("B.log", 64), ("C.log", 512)):
        log = (folder / "LOG").read_text().replace("432.8", f"{108.2 * count:.1f}")
        (folder / name).write_text(re.sub(r"(GPUs:|on) 4", rf"\1 {count}", log))
    lines = (f"iter {step} loss 3.21 tok/s: {1000 + step % 3}\n" for step in range(1, 101))
    (folder / "RATES").write_text("".join(lines))
    fashion_mnist(folder / "fashion-mnist")
    for name in ("published.json", "published-nodes.json"):
        (folder / name).write_text(json.dumps(json.loads((REPOSITORY / "tests" / name).read_text())[::20]))
    for name in ("BASE", "NEW", *(f"{side}{number}" for side in ("BASE", "NEW") for number in (1, 2, 3))):
        compared_runs.on_disk(folder / name, without_noise())
    scripted_records.written(folder / "MEASURED", predicted_runs.large())
    (folder / "results-main").mkdir()
    for number in range(5):
        compared_runs.on_disk(folder / "results-main" / f"run{number}", without_noise())
    signs = bool(shutil.which("ssh-keygen"))
    for line in (
        *([KEYS] if signs else []),
        f"{CERTIFIED}{' --sign certifier --archive signed.tgz' if signs else ''}; {REFERENCE}",
        "mpirun -np 16 python -m scaling.run && mv results/* RUN",
        "mpirun -np 16 python -m scaling check --json > check.json",
    ):
        done = shell(line, folder)
        assert done.returncode == 0, done.stderr
    shutil.copytree(folder / "RUN", folder / "results" / "run")
    return folder


@pytest.fixture(scope="module")
def plans() -> set[str]:
    """Lines of which another one measures: they differ from it only in what starts the ranks."""
    lines = [one.line for one in COMMANDS if LAUNCHED.match(one.line)]
    measures = {LAUNCHED.sub("", line): line for line in reversed(lines)}
    return {*lines} - {*measures.values()}


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_it_runs(command: Command, clone: Path, plans: set[str]) -> None:
    line = command.line
    more = {stand_ins.FLAGS: "--dry-run"} if line in plans else {}
    if re.search(r"--sign\b|--signed-by", line) and not shutil.which("ssh-keygen"):
        pytest.skip("no ssh-keygen")
    for placeholder, substitute in SUBSTITUTES.items():
        line = line.replace(placeholder, substitute)
    if "scaling import" in line:
        line = line.replace("-o RUN", "-o $(mktemp --dry-run)")
    done = shell(line, clone, **more)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
