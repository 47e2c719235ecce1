"""Installs pip into this Python's environment if ensurepip is missing (Debian).

It fetches one pinned wheel from pip's package index. The hash is checked, so no certificates are needed.
"""

from __future__ import annotations

import configparser
import hashlib
import html
import os
import re
import ssl
import subprocess
import sys
import tempfile
from base64 import b64encode
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit
from urllib.request import Request, urlopen

WHEEL = "pip-26.1.2-py3-none-any.whl"
SHA256 = "382ff9f685ee3bc25864f820aa50505825f10f5458ffff07e30a6d96e5715cab"
CONFIG_FILES = ("/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf", "$PIP_CONFIG_FILE")
ADVICE = (
    "set PIP_INDEX_URL or https_proxy as your network needs, "
    "or install what brings pip (Debian, Ubuntu: apt-get install python3-venv)"
)


def main() -> None:
    """Install pip. SystemExit with advice if it cannot be downloaded."""
    index = setting("index-url", "https://pypi.org/simple").rstrip("/")
    try:
        content = download(f"{index}/pip/")
    except (OSError, LookupError, ValueError) as error:
        raise SystemExit(f"launch: no pip from {split_login(index)[0]} ({error}): {ADVICE}") from None
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(folder, WHEEL)
        wheel.write_bytes(content)
        subprocess.run([sys.executable, wheel / "pip", "install", "--quiet", "--no-index", wheel], check=True)


def download(page: str) -> bytes:
    """Download the wheel through the index page (PEP 503). Raises OSError, LookupError for a missing or wrong
    wheel."""
    link = re.search(rf'href="([^"#]*{re.escape(WHEEL)})[#"]', fetch(page).decode())
    if link is None:
        raise LookupError(f"it has no {WHEEL}")
    content = fetch(urljoin(page, html.unescape(link[1])))
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise LookupError(f"its {WHEEL} has another SHA-256 than expected")
    return content


def fetch(url: str) -> bytes:
    """GET `url`. Raises OSError on failure. User and password are only sent to a verified host."""
    address, login = split_login(url)
    trust = ssl.create_default_context(cafile=setting("cert", "") or None)
    if not login:
        trust.check_hostname = False
        trust.verify_mode = ssl.CERT_NONE
    headers = {"Authorization": f"Basic {b64encode(login.encode()).decode()}"} if login else {}
    with urlopen(Request(address, headers=headers), timeout=60, context=trust) as answer:
        content: bytes = answer.read()
    return content


def split_login(url: str) -> tuple[str, str]:
    """Split `https://user:password@host/...` into the address and `user:password`, "" if missing."""
    parts = urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=host)), unquote(login)


def setting(name: str, default: str) -> str:
    files = configparser.RawConfigParser()
    files.read(Path(os.path.expandvars(path)).expanduser() for path in CONFIG_FILES)
    found = files.get("global", name, fallback=default)
    found = files.get("install", name, fallback=found)
    return os.environ.get(f"PIP_{name.upper().replace('-', '_')}", found)


if __name__ == "__main__":
    main()
