"""What is published: the wheel and its first run, the pages as a site, forms, workflows, citation."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import scaling

REPOSITORY = Path(scaling.__file__).parents[1]
GITHUB = REPOSITORY / ".github"
# Not in the package: pictures of its pages.
PICTURES = {".png", ".svg"}


def call(*command: str | Path, cwd: Path, **environ: str) -> str:
    """The output of a command, with the environment of a shell that knows no clone."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SCALING_PAGE")}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd, env={**kept, **environ}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(kind: str, clone: Path, target: Path) -> Path:
    call("-c", f"from setuptools import build_meta; build_meta.build_{kind}({str(target)!r})", cwd=clone)
    return max(target.iterdir(), key=lambda path: path.stat().st_mtime_ns)


def tracked(*below: str) -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *below]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built of the sdist, which was built of a clone."""
    pytest.importorskip("setuptools")
    clone, target = (tmp_path_factory.mktemp(name) for name in ("clone", "dist"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", *tracked("scaling")):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, clone / name)
    with tarfile.open(built("sdist", clone, target)) as packed:
        packed.extractall(clone / "unpacked", filter="data")
    (source,) = (clone / "unpacked").iterdir()
    return built("wheel", source, target)


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {name for name in tracked("scaling") if Path(name).suffix not in PICTURES}
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert any(name.endswith("/LICENSE") for name in names)


def test_twine_finds_no_fault_in_the_wheel(wheel: Path) -> None:
    pytest.importorskip("twine", reason="no twine: pip install -e '.[test]'")
    said = call("-m", "twine", "check", "--strict", *sorted(wheel.parent.iterdir()), cwd=wheel.parent)
    assert said.count("PASSED") == 2


def test_an_editable_install_is_found_beside_its_clone(tmp_path: Path) -> None:
    """The clone, a folder `scaling` without an __init__.py, is a namespace package there."""
    pytest.importorskip("setuptools")
    clone, site = tmp_path / "scaling", tmp_path / "site"
    (clone / "scaling").mkdir(parents=True)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "scaling/__init__.py"):
        shutil.copy(REPOSITORY / name, clone / name)
    build = "from setuptools import build_meta; build_meta.build_editable('..')"
    subprocess.run([sys.executable, "-c", build], cwd=clone, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(site)
    code = f"import site; site.addsitedir({str(site)!r}); import scaling; print(scaling.__file__)"
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert found.stdout == f"{clone}/scaling/__init__.py\n", found.stderr


# ---------------------------------------------------------------- GitHub's files


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("github-workflows", ".github/workflows/*.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("citation-file-format", "CITATION.cff"),
    ],
)
def test_files_keep_to_their_schemas(schema: str, pattern: str) -> None:
    pytest.importorskip("check_jsonschema", reason="no check-jsonschema: pip install -e '.[test]'")
    files = sorted(REPOSITORY.glob(pattern))
    assert files
    call("-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files, cwd=REPOSITORY)


def test_the_citation_is_of_this_version() -> None:
    assert f"\nversion: {scaling.__version__}\n" in (REPOSITORY / "CITATION.cff").read_text()


# ---------------------------------------------------------------- the pages


def site(target: Path, clone: Path = REPOSITORY) -> str:
    if importlib.util.find_spec("material") is None:
        pytest.skip("no mkdocs-material: pip install -e '.[test]'")
    config = clone / ".github/docs/mkdocs.yml"
    words = ("-m", "mkdocs", "build", "--strict", "--config-file")
    return call(*words, config, "--site-dir", target, cwd=clone, NO_MKDOCS_2_WARNING="1")


def test_the_site_has_each_page_and_a_search(tmp_path: Path) -> None:
    site(tmp_path)
    pages = [Path(name) for name in tracked("*.md") if not name.startswith(("tests/golden/", ".github/"))]
    for page in pages:
        place = page.parent if page.stem == "README" else page.with_suffix("")
        assert (tmp_path / place / "index.html").is_file(), page
    assert (tmp_path / "search/search_index.json").is_file()
    assert "https://fonts" not in (tmp_path / "index.html").read_text()


@pytest.mark.parametrize("planted", ["[lost](scaling/lost.md)", "[lost](#lost)"])
def test_a_broken_link_is_found(tmp_path: Path, planted: str) -> None:
    clone = tmp_path / "clone"
    for name in tracked("*.md", ".github", "*.svg", "*.png", "*/peaks.toml", "*/example_*.py"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, clone / name)
    subprocess.run(["git", "init", "-q"], cwd=clone, check=True)
    site(tmp_path / "whole", clone)
    with (clone / "README.md").open("a") as readme:
        readme.write(f"\n{planted}\n")
    with pytest.raises(AssertionError, match="lost"):
        site(tmp_path / "broken", clone)
