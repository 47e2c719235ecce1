"""What an archive of a run leaves out: secrets, arguments of other programs and, if it is anonymous, names.

A secret is the value of a variable whose name says so: in the records, in the logs, or in this process.
"""

from __future__ import annotations

import pwd
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from scaling.records.host import SECRET, USERINFO
from scaling.records.telemetry import Foreign
from scaling.report.anonymous import Disguise

LEFT_OUT, A_USER = "(left out)", "user"
# A shorter value is left out next to its name only: as a word it may be anywhere.
LEAST_CHARACTERS = 6
# The end of a name and its value, as shells, YAML, JSON and Python write them. The match ends before the value,
# because that may be another name with a value. First letters are looked at first, because logs are long.
_ASSIGNED = re.compile(
    rf"(?=[ACKPST])(?P<end>(?:{SECRET.pattern})[\w.-]{{0,80}})"
    r"""["']?\]?[ \t]{0,2}[=:][ \t]{0,2}["']?(?=(?P<value>(?<=["'])[^"'\n]+|[^\s"',;&)\]}]+))""",
    re.IGNORECASE,
)
_BEGIN = re.compile(r"[\w.-]*\Z")
# Names in lower case. `max_tokens=512` and `key: value` hold no secret.
_SAYS = re.compile(r"(.*[_.-])?(passw(or)?d|secret|token|(api|access|private|secret)[_-]?key)", re.IGNORECASE)
_BEARER = re.compile(r"(?<=bearer )[\w.~+/=-]{6,}", re.IGNORECASE)
_PRIVATE_KEY = re.compile(r"(?<=PRIVATE KEY-----).*?(?=-----END|\Z)", re.DOTALL)
_HOME = re.compile(r"(?<![\w.:/])(?:/home/|/Users/|~(?=[\w.-]+/))([A-Za-z_][\w.-]*)")
# Users that are no person.
_NOBODY = frozenset({"nobody", "root", "runner", "ubuntu", "user"})
_NUMBERED = re.compile(r"(?<![A-Za-z0-9])node\d+")
_SHORT = 5


class Redaction(Disguise):
    """Replaces secrets and arguments of other programs. If `anonymous`, also names of hosts, users and folders."""

    def __init__(
        self, secrets: Iterable[str], hosts: Iterable[str] = (), users: Collection[str] = (), *, anonymous: bool
    ) -> None:
        super().__init__(hosts)
        self.is_anonymous = anonymous
        self._secrets = re.compile(_any_of(secrets))
        self._users = re.compile(rf"(?<![A-Za-z0-9])(?:{_any_of(users)})(?![A-Za-z0-9])")
        names = map(_anywhere, sorted({*self._nodes, *users}))
        self._names = re.compile("|".join(names) or r"(?!)", re.IGNORECASE)

    def text(self, text: str) -> str:
        """Return a text without secrets and, if anonymous, without names."""
        text = _PRIVATE_KEY.sub(LEFT_OUT, _BEARER.sub(LEFT_OUT, USERINFO.sub(f"//{LEFT_OUT}@", text)))
        text = self._secrets.sub(LEFT_OUT, _without_values(text))
        return self._users.sub(A_USER, super().text(text)) if self.is_anonymous else text

    def still_names(self, text: str) -> bool:
        """Return whether an anonymous text has a name nevertheless: in capitals, in a word, or a home folder."""
        rest = _NUMBERED.sub("", text)
        return self.is_anonymous and bool(self._names.search(rest) or users_in(rest))

    def _of(self, value: Any) -> Any:
        match value:
            case dict():
                value = {key: LEFT_OUT if one and _is_variable(key) else one for key, one in value.items()}
            case Foreign() if not self.is_anonymous:
                return replace(value, name=value.program)
        return super()._of(value)


def _any_of(words: Iterable[str]) -> str:
    longest = sorted(set(words), key=lambda word: (-len(word), word))
    return "|".join(map(re.escape, longest)) or r"(?!)"


def _anywhere(name: str) -> str:
    """Return the pattern of a name inside of words; short names are part of too many."""
    found = re.escape(name)
    return found if len(name) >= _SHORT else rf"(?<![A-Za-z]){found}(?![A-Za-z])"


def _is_variable(name: object) -> bool:
    """Return whether this is the name of a variable, in capitals, that holds a secret."""
    return isinstance(name, str) and name == name.upper() and SECRET.search(name) is not None


def _assigned(text: str) -> Iterator[re.Match[str]]:
    return (found for found in _ASSIGNED.finditer(text) if _is_secret(_name(found), found["value"]))


def _name(found: re.Match[str]) -> str:
    begin = _BEGIN.search(found.string[max(found.start() - 80, 0) : found.start()])
    return f"{begin[0] if begin else ''}{found['end']}"


def _is_secret(name: str, value: str) -> bool:
    if LEFT_OUT.startswith(value):
        return False
    return _is_variable(name) or bool(_is_long(value) and not value.isdigit() and _SAYS.fullmatch(name))


def _without_values(text: str) -> str:
    parts, end = [], 0
    for found in _assigned(text):
        if found.start("value") >= end:
            parts += [text[end : found.start("value")], LEFT_OUT]
            end = found.end("value")
    return "".join((*parts, text[end:]))


# ---------------------------------------------------------------- what is known of secrets and users


def secrets_in(text: str) -> Iterator[str]:
    """Yield the secrets that a text assigns to names."""
    return filter(_is_worth_a_search, (found["value"] for found in _assigned(text)))


def secrets_of(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the secrets of an environment."""
    return filter(_is_worth_a_search, (value for name, value in environ.items() if SECRET.search(name)))


def _is_long(value: str) -> bool:
    return len(value) >= LEAST_CHARACTERS


def _is_worth_a_search(value: str) -> bool:
    """Return whether a value may be looked for anywhere. The path of a file that has a secret is none."""
    try:
        return _is_long(value) and not Path(value).exists()
    except (OSError, ValueError):
        return True


def users_in(text: str) -> set[str]:
    """Return the users whose home folders a text names."""
    return {*_HOME.findall(text)} - _NOBODY


def owner(path: Path) -> set[str]:
    """Return the user that a file belongs to."""
    try:
        return {pwd.getpwuid(path.stat().st_uid).pw_name} - _NOBODY
    except (KeyError, OSError):
        return set()
