"""The help page of a command in plain lines, and what is said about wrong words on its command line.

Both read Click's commands and parameters, which Typer makes of the flags that a command declares.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from textwrap import wrap
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from scaling.errors import closest, near, not_one_of

LEFT, LEAST, MOST = 26, 60, 100  # columns of a flag with its value, and of a page
HELP, HELP_ALL = ("--help", "-h"), "--help-all"
COMMANDS, ARGUMENTS, FLAGS = OWN = ("Commands", "Arguments", "Flags")  # panels that no flag names
# What a flag of this type takes.
NUMBERS = {int: "a whole number", float: "a number", bool: "1 or 0"}


class Row(NamedTuple):
    """A flag, an argument or a subcommand. `name` is its name in Python, `panel` the heading above it."""

    name: str
    left: str
    text: str
    panel: str


def page(context: Any, *, width: int, usual: Collection[str] = (), whole: bool = True) -> str:
    """Return the help of the command of this context, `width` columns wide, from 60 to 100.

    Panels with `usual` flags come first, and usual flags first in each. Without `whole` there are no others, and
    the epilog is its last paragraph.
    """
    command, width = context.command, min(max(width, LEAST), MOST)
    rows = [Row("", name, _summary(one), COMMANDS) for name, one in getattr(command, "commands", {}).items()]
    rows += [_row(one) for one in command.params if not one.hidden]
    rows = [one for one in rows if whole or one.name in usual]
    blocks = [_filled(f"Usage: {usage(context)}", width), *_paragraphs(command.help, width)]
    blocks += _panels(sorted(rows, key=lambda one: (one.panel not in OWN, one.name not in usual)), width)
    blocks += [] if whole else [f"All flags: {context.command_path} {HELP_ALL}"]
    return "\n\n".join([*blocks, *_paragraphs(command.epilog, width)[0 if whole else -1 :]])


def usage(context: Any) -> str:
    """Return the pattern of a call: `scaling import --output RUN [FLAG]... LOG...`."""
    command = context.command
    arguments = [one for one in command.params if _is_argument(one)]
    flags = [one for one in command.params if not _is_argument(one)]
    words = [f"{_flag(one)} {one.metavar}" for one in flags if one.required]
    words += ["[FLAG]..."] if flags else []
    words += ["COMMAND"] if hasattr(command, "commands") else []
    words += [one.metavar if one.required else f"[{one.metavar}]" for one in arguments]
    return " ".join([context.command_path, *words])


# ---------------------------------------------------------------- parts of a page


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _flag(parameter: Any) -> str:
    """Return the long name of a flag, or the metavar of an argument."""
    return str(parameter.metavar if _is_argument(parameter) else max(parameter.opts, key=len))


def _summary(command: Any) -> str:
    return str(command.help).partition("\n\n")[0]


def _row(parameter: Any) -> Row:
    if _is_argument(parameter):
        return Row(parameter.name, parameter.metavar, parameter.help, ARGUMENTS)
    names = ", ".join(sorted(parameter.opts, key=len))
    if parameter.secondary_opts:
        names = names.replace("--", "--[no-]")
    value = "" if parameter.is_flag else f" {parameter.metavar}"
    notes = "; ".join(_notes(parameter))
    text = f"{parameter.help} [{notes}]" if notes else parameter.help
    return Row(parameter.name, names + value, text, parameter.rich_help_panel or FLAGS)


def _notes(parameter: Any) -> Iterator[str]:
    said, default = parameter.show_default, parameter.default
    if isinstance(said, str):
        yield f"default: {said}"
    elif parameter.is_flag and parameter.secondary_opts and default is not None:
        yield f"default: {'on' if default else 'off'}"
    elif said and not parameter.is_flag and isinstance(default, str | int | float | os.PathLike) and default != "":
        yield f"default: {f'{default:g}' if isinstance(default, float) else default}"
    if parameter.envvar:
        yield f"variable: {parameter.envvar}"
    if parameter.required:
        yield "required"


def _panels(rows: Sequence[Row], width: int) -> Iterator[str]:
    for panel in dict.fromkeys(one.panel for one in rows):
        lines = [line for one in rows if one.panel == panel for line in _lines(one, width)]
        yield "\n".join([f"{panel}:", *lines])


def _lines(row: Row, width: int) -> list[str]:
    """Return the lines of a row; the text begins below a long flag, else beside it."""
    first = f"  {row.left}"
    lines = wrap(row.text, width - LEFT, break_long_words=False, break_on_hyphens=False)
    texts = [f"{'':{LEFT}}{line}" for line in lines]
    return [first, *texts] if len(first) >= LEFT else [f"{first:{LEFT}}{texts[0].strip()}", *texts[1:]]


def _paragraphs(text: str | None, width: int) -> list[str]:
    return [_filled(one, width) for one in (text or "").split("\n\n") if one]


def _filled(text: str, width: int) -> str:
    """Fill a paragraph: prose, items that begin with `*`, and commands, which four spaces set apart."""
    lines = re.sub(r"(?m)^([^ *\n].*)\n(?=[^ *])", r"\1 ", text).splitlines()
    return "\n".join(part for line in lines for part in _wrapped(line, width))


def _wrapped(line: str, width: int) -> list[str]:
    """Break a line between words; a command goes on behind a backslash."""
    end = " \\" if line.startswith(" ") and len(line) > width else ""
    indent = "        " if end else "  " if line.startswith("*") else ""
    *lines, last = wrap(
        line, width - len(end), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [*(f"{one}{end}" for one in lines), last]


# ---------------------------------------------------------------- refusals


def refusal(error: Any, command: Any, argv: Sequence[str]) -> str:
    """Return our words for an error of Click or Typer about the `argv` of a command: where, what, the fix."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    flag, kind = getattr(error, "option_name", ""), type(error).__name__
    flags = _flags(context.command) if context else _flags(command, *getattr(command, "commands", {}).values())
    if kind == "NoSuchOption":
        # Others call the folder of results so.
        close = "--results" if flag.startswith("--out") and "--results" in flags else closest(flag, flags)
        return f"{flag}: no such flag; " + (f"did you mean {close!r}?" if close else "see --help")
    if kind == "BadOptionUsage" and flag in flags:
        return f"{flag}: " + ("takes no value" if flags[flag].is_flag else f"needs a value, {flags[flag].metavar}")
    if kind == "MissingParameter" and parameter and context:
        return f"{_flag(parameter)}: missing; usage: {usage(context)}"
    if kind == "BadParameter" and parameter and context:
        return _wrong_value(parameter, context, argv) or str(error.format_message())
    return _wrong_word(context, str(error.format_message()))


def _flags(*commands: Any) -> dict[str, Any]:
    """Return the flags of commands by each of their names."""
    return {name: one for each in commands for one in each.params for name in (*one.opts, *one.secondary_opts)}


def _wrong_word(context: Any, message: str) -> str:
    """Return a message about a word that is no flag in our words, if Click's are known."""
    if found := re.search(r"command '(.+?)'", message):
        return f"{found[1]}: no such command; {near(found[1], context.command.commands)}"
    if found := re.search(r"unexpected extra arguments?(?:\(s\))? \((.+)\)", message):
        return f"{found[1]}: unexpected; usage: {usage(context)}"
    return message


def _wrong_value(parameter: Any, context: Any, argv: Sequence[str]) -> str:
    """Return what is wrong with the value of a flag, by its declared type; "" if the type explains nothing."""
    hint = inspect.signature(context.command.callback, eval_str=True).parameters[parameter.name].annotation
    plain, declared = get_args(hint)
    kinds = get_args(plain) if get_origin(plain) in (Union, UnionType) else (plain,)
    choices = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    where, word = _given(parameter, argv)
    if choices:
        return f"{where}: {not_one_of(word, choices)}"
    number = next((kind for kind in kinds if kind in NUMBERS), None)
    if number in (int, float) and declared.min is not None:
        with suppress(ValueError):
            if number(word) < declared.min:
                return f"{where} {word}: must be at least {declared.min}"
            if declared.max is not None and number(word) > declared.max:
                return f"{where} {word}: must be at most {declared.max:g}"
    if number is int and "," in word and f"{where}s" in _flags(context.command):
        return f"{where} {word}: takes one number; for several: {where}s {word}"
    return f"{where}: {word!r} is not {NUMBERS[number]}" if number else ""


def _given(parameter: Any, argv: Sequence[str]) -> tuple[str, str]:
    """Return the flag or variable that gave a value, and the value."""
    for place in range(len(argv) - 1, -1, -1):
        name, equals, value = argv[place].partition("=")
        if name in parameter.opts and (equals or argv[place + 1 :]):
            return name, value if equals else argv[place + 1]
    return str(parameter.envvar), os.environ.get(str(parameter.envvar), "")
