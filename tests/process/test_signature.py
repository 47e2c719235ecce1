"""`certify --sign` and `report --signed-by`: a signature holds for the run and its archives alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from scaling.errors import UsageError
from scaling.report import archive, signature
from scaling.report.__main__ import main as report
from scaling.report.archive import unpacked
from scaling.tools.certify import flags
from tests.support import stand_in_launch

pytestmark = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed: apt-get install openssh-client"
)
FAKE = ("--device", "cpu", "--no-page", "--view", "none", "--strategy", "fake:a", "--option", "noise=0.001")


def key(folder: Path, name: str, passphrase: str = "") -> Path:
    path = folder / name
    made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", name, "-f", str(path)]
    subprocess.run(made, check=True)
    return path


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The keys of alice, who is allowed, and of mallory, who is not."""
    folder = tmp_path_factory.mktemp("keys")
    alice, _ = key(folder, "alice"), key(folder, "mallory")
    (folder / "allowed").write_text(f"alice@example.org {alice.with_suffix('.pub').read_text()}")
    return folder


@pytest.fixture(scope="module")
def certified(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a signed run, and its archive."""
    folder = tmp_path_factory.mktemp("certified")
    signed = ("--sign", str(keys / "alice"), "--archive", str(folder / "sent.tgz"))
    assert stand_in_launch.certify(2, [*FAKE, "--results", str(folder / "results"), *signed]) == 0
    (run,) = (folder / "results").iterdir()
    run.rename(folder / "run")
    return folder


@pytest.fixture
def copied(certified: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(certified / "run", tmp_path / "copy"))


def said(capsys: pytest.CaptureFixture[str], code: int, run: Path, *words: str) -> str:
    """The only line on stderr of a report with this exit code."""
    capsys.readouterr()
    assert report([str(run), *words]) == code
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert bool(out) == (code == 0)
    return err.replace(str(run), "RUN").rstrip()


@pytest.mark.parametrize("name", ["run", "sent.tgz"])
@pytest.mark.parametrize("identity", ["", ":alice@example.org"])
def test_a_signature_holds_for_the_run_and_its_archive(
    certified: Path, keys: Path, capsys: pytest.CaptureFixture[str], name: str, identity: str
) -> None:
    err = said(capsys, 0, certified / name, "--signed-by", f"{keys}/allowed{identity}")
    assert err.startswith("scaling report: verified: RUN: signed by alice@example.org with ED25519 key SHA256:")


@pytest.mark.parametrize("words", [(), ("--anonymous",)])
def test_archives_that_are_made_later_have_the_signature(
    certified: Path, keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    sent = tmp_path / "later.tgz"
    assert report([str(certified / "run"), "--format", "archive", "-o", str(sent), *words]) == 0
    assert "signed by alice" in said(capsys, 0, sent, "--signed-by", f"{keys}/allowed")


def test_an_archive_of_other_records_is_without_the_signature(
    certified: Path,
    keys: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A secret of the packing process is left out of the records, so these are not the signed ones."""
    sent = tmp_path / "later.tgz"
    monkeypatch.setenv("SOME_TOKEN", "digits-cnn")
    sent.write_bytes(archive.pack(certified / "run"))
    with unpacked([sent]) as folders:
        names = {path.name for path in folders[sent].iterdir()}
        versions = (folders[sent] / archive.VERSIONS).read_text()
    assert "left out: the signature: the packed records are not the signed ones" in versions
    assert signature.STATEMENT not in names
    assert "has no signature" in said(capsys, 1, sent, "--signed-by", f"{keys}/allowed")


def forge(run: Path) -> None:
    file = run / "run.jsonl"
    text = file.read_text()
    assert '"minutes":30' in text
    file.write_text(text.replace('"minutes":30', '"minutes":16', 1))


def forge_a_record(run: Path) -> None:
    lines = (run / "run.jsonl").read_text().splitlines(keepends=True)
    (run / "run.jsonl").write_text("".join((*lines[:3], *lines[4:])))


def forge_the_statement(run: Path) -> None:
    forge(run)
    digest = sha256((run / "run.jsonl").read_bytes()).hexdigest()
    with (run / signature.STATEMENT).open("a") as file:
        file.write(f"{digest}  run.jsonl\n")


CHANGED = "is not the file that was signed: it was changed"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (forge, f"run.jsonl {CHANGED}"),
        (forge_a_record, f"run.jsonl {CHANGED}"),
        (forge_the_statement, "the signature does not hold for alice@example.org of"),
        (lambda run: (run / "preflight.json").write_text("{}"), f"preflight.json {CHANGED}"),
        (lambda run: (run / "preflight.json").unlink(), "preflight.json is missing, but it was signed"),
        (lambda run: (run / signature.STATEMENT).unlink(), "has no signature; scaling certify --sign KEY"),
        (lambda run: (run / signature.SIGNATURE).unlink(), "has no signature; scaling certify --sign KEY"),
        (lambda run: (run / signature.SIGNATURE).write_text("no signature"), "its signer is not in"),
    ],
)
def test_a_change_breaks_the_signature(
    copied: Path, keys: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], None], why: str
) -> None:
    change(copied)
    err = said(capsys, 1, copied, "--signed-by", f"{keys}/allowed")
    assert err.startswith(f"scaling report: error: RUN: {why}")


def test_another_signer_is_refused(copied: Path, keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    allowed = f"{keys}/allowed"
    assert "does not hold for bob" in said(capsys, 1, copied, "--signed-by", f"{allowed}:bob")
    signature.sign(copied, keys / "mallory", [])
    assert "its signer is not in" in said(capsys, 1, copied, "--signed-by", allowed)
    assert "does not hold for alice" in said(capsys, 1, copied, "--signed-by", f"{allowed}:alice@example.org")


def test_a_signature_for_another_purpose_is_none(
    copied: Path, keys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as other:
        other.setattr(signature, "NAMESPACE", "git")
        signature.sign(copied, keys / "alice", [])
    assert "does not hold for alice" in said(capsys, 1, copied, "--signed-by", f"{keys}/allowed")


def test_the_file_of_signers_must_exist(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    err = said(capsys, 2, copied, "--signed-by", "nowhere:alice")
    assert err == (
        "scaling report: error: --signed-by nowhere:alice: No such file or directory; give a file of allowed "
        "signers (man ssh-keygen)"
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nowhere", "No such file or directory; give a key that ssh-keygen made"),
        ("locked", "has a passphrase, and nobody may be there to type it; load it with ssh-add, and give"),
        ("allowed", "ssh-keygen cannot sign with it: "),
    ],
)
def test_keys_that_cannot_sign_are_refused_before_anything_is_measured(keys: Path, name: str, why: str) -> None:
    if name == "locked" and not (keys / name).exists():
        key(keys, name, "a passphrase")
    with pytest.raises(UsageError) as error:
        flags.parse([*FAKE, "--sign", str(keys / name)])
    message = str(error.value)
    assert message.startswith(f"--sign {keys / name}: {why}") and "\n" not in message


def test_without_ssh_keygen_there_is_a_line(
    copied: Path, keys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(UsageError, match="--sign: ssh-keygen is not installed; install openssh-client"):
        flags.parse([*FAKE, "--sign", str(keys / "alice")])
    err = said(capsys, 2, copied, "--signed-by", f"{keys}/allowed")
    assert err == "scaling report: error: --signed-by: ssh-keygen is not installed; install openssh-client"
