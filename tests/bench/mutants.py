"""Small faults for a source file, found in its syntax tree: each changes one expression or drops one branch.

A mutant has the same name in any commit that still has the expression: its function, the change, and the source of
what it changes. The name leaves out the file, prefixes of imported modules and leading underscores.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

COMPARISONS: Mapping[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: Mapping[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult
}  # fmt: skip
SIGNS = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is",
    ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in", ast.Add: "+", ast.Sub: "-", ast.Mult: "*",
    ast.Div: "/", ast.And: "and", ast.Or: "or",
}  # fmt: skip
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPOUND = (ast.If, ast.While, ast.For, ast.With, ast.Try)
# Text and lists are joined by "+" too: the change would fail at once in any test.
JOINED = (ast.JoinedStr, ast.Tuple, ast.List, ast.ListComp)
# A constant alone says little: it is named by the nearest expression around it of another kind.
THIN = (ast.keyword, ast.Slice, ast.UnaryOp, ast.Tuple, ast.Starred)
ANNOTATIONS = {"annotation", "returns", "decorator_list", "type_params", "bases", "format_spec"}


class Name(NamedTuple):
    """The same mutant in all commits; `nth` counts equal expressions of a function."""

    function: str
    change: str
    text: str
    nth: int


class Mutant(NamedTuple):
    """One fault: its name, the file, its line, and the line its function begins at, decorators included."""

    name: Name
    file: str
    line: int
    function_line: int


class _Site(NamedTuple):
    function: tuple[str, ...]
    function_line: int
    node: ast.AST
    change: str
    shown: ast.AST | str
    apply: Callable[[], object]


class _Around(NamedTuple):
    function: tuple[str, ...] = ()
    function_line: int = 0
    inside: bool = False
    returns: str = ""
    parents: tuple[ast.AST, ...] = ()


def mutants(sources: Mapping[str, str]) -> list[Mutant]:
    """All mutants of these files, without those that share their name with another."""
    found = [one for file, source in sources.items() for one in of_file(file, source)]
    count = Counter(one.name for one in found)
    return [one for one in found if count[one.name] == 1]


def of_file(file: str, source: str) -> Iterator[Mutant]:
    """All mutants of one file, in the order of their places."""
    tree = ast.parse(source)
    seen: Counter[tuple[str, str, str]] = Counter()
    short = partial(normalised, modules=_modules(tree))
    for site in _sites(tree, _Around()):
        function = ".".join(name.strip("_") for name in site.function)
        key = (function, site.change, short(site.shown))
        yield Mutant(Name(*key, seen[key]), file, getattr(site.node, "lineno", 0), site.function_line)
        seen[key] += 1


def planted(mutant: Mutant, source: str) -> str:
    """The file's source with this fault; comments and layout are lost."""
    tree = ast.parse(source)
    for one, site in zip(of_file(mutant.file, source), list(_sites(tree, _Around())), strict=True):
        if one == mutant:
            site.apply()
            return ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    raise LookupError(mutant)


def chosen(found: Iterable[Mutant], count: int, seed: int) -> list[Mutant]:
    """So many of them by a hash of seed and name, one a function at most."""
    taken: dict[str, Mutant] = {}
    for one in sorted(found, key=lambda one: _rank(one.name, seed)):
        taken.setdefault(one.name.function, one)
    return list(taken.values())[:count]


def again(names: Sequence[Name], found: Iterable[Mutant]) -> dict[Name, Mutant]:
    """The mutants of another commit's list that this one has too.

    A function may have moved or been renamed: then a place that alone has the same change of the same text counts.
    """
    by_name: dict[Name, Mutant] = {}
    by_text: dict[tuple[str, str], list[Mutant]] = defaultdict(list)
    for one in found:
        by_name.setdefault(one.name, one)
        by_text[one.name.change, one.name.text].append(one)
    matches = {name: by_name.get(name) or _moved(name, by_text[name.change, name.text]) for name in names}
    return {name: one for name, one in matches.items() if one}


def _moved(name: Name, places: Sequence[Mutant]) -> Mutant | None:
    last = name.function.rpartition(".")[2]
    same = [one for one in places if one.name.function.rpartition(".")[2] == last and one.name.nth == name.nth]
    for choice in (same, places):
        if len(choice) == 1:
            return choice[0]
    return None


def _rank(name: Name, seed: int) -> str:
    return hashlib.sha256("\0".join(map(str, (seed, *name))).encode()).hexdigest()


def normalised(shown: ast.AST | str, modules: frozenset[str]) -> str:
    """Source on one line, without prefixes of modules and leading underscores."""
    if isinstance(shown, str):
        return shown
    return " ".join(ast.unparse(_Plain(modules).visit(deepcopy(shown))).split())


class _Plain(ast.NodeTransformer):
    def __init__(self, modules: frozenset[str]) -> None:
        self.modules = modules

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id in self.modules:
            return ast.Name(node.attr.lstrip("_"), node.ctx)
        self.generic_visit(node)
        node.attr = node.attr.lstrip("_")
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(node.id.lstrip("_") or node.id, node.ctx)


def _modules(tree: ast.AST) -> frozenset[str]:
    """Names that imports bind; classes, which begin with a capital, keep theirs."""
    imports = (one for one in ast.walk(tree) if isinstance(one, ast.Import | ast.ImportFrom))
    names = (alias.asname or alias.name.partition(".")[0] for one in imports for alias in one.names)
    return frozenset(name for name in names if not name[:1].isupper())


def _sites(node: ast.AST, around: _Around) -> Iterator[_Site]:
    """Each place below a node, outside annotations, signatures, assertions and patterns."""
    around = around._replace(parents=(*around.parents, node))
    for field, value in ast.iter_fields(node):
        if field in ANNOTATIONS:
            continue
        children = value if isinstance(value, list) else [value]
        for index, child in enumerate(children):
            if not isinstance(child, ast.AST) or isinstance(child, ast.arguments | ast.Assert | ast.pattern):
                continue
            put = partial(value.__setitem__, index) if isinstance(value, list) else partial(setattr, node, field)
            if around.inside:
                yield from _here(child, put, around)
            yield from _sites(child, _entered(child, around))


def _entered(node: ast.AST, around: _Around) -> _Around:
    if isinstance(node, FUNCTIONS):
        line = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        returns = ast.unparse(node.returns) if node.returns else ""
        return _Around((*around.function, node.name), line, True, returns, around.parents)
    if isinstance(node, ast.ClassDef):
        return around._replace(function=(*around.function, node.name), inside=False)
    return around


def _here(node: ast.AST, put: Callable[[Any], object], around: _Around) -> Iterator[_Site]:
    site = partial(_Site, around.function, around.function_line, node)
    match node:
        case ast.Compare():
            for index, op in enumerate(node.ops):
                new = COMPARISONS[type(op)]
                yield site(_swap(op, new), node, partial(node.ops.__setitem__, index, new()))
        case ast.BinOp() | ast.AugAssign() if type(node.op) in ARITHMETIC and not _joins(node):
            new = ARITHMETIC[type(node.op)]
            yield site(_swap(node.op, new), node, partial(setattr, node, "op", new()))
        case ast.BoolOp():
            new = ast.Or if isinstance(node.op, ast.And) else ast.And
            yield site(_swap(node.op, new), node, partial(setattr, node, "op", new()))
        case ast.UnaryOp(op=ast.Not()):
            yield site("not dropped", node, partial(put, node.operand))
        case ast.Constant(value=bool() | int() | float() as value) if not _moot(around.parents[-1]):
            other = _other(value)
            shown = next(one for one in reversed(around.parents) if not isinstance(one, THIN))
            yield site(f"{value} to {other}", shown, partial(setattr, node, "value", other))
        case ast.Return(value=ast.expr() as result) if not isinstance(result, ast.Constant):
            what, instead = _returned(result, around.returns)
            yield site(f"returns {what}", node, partial(setattr, node, "value", instead))
        case ast.If():
            yield site(
                "body dropped", f"if {ast.unparse(node.test)}", partial(setattr, node, "body", [ast.Pass()])
            )
            if node.orelse and not isinstance(node.orelse[0], ast.If):
                yield site("else dropped", f"if {ast.unparse(node.test)}", partial(setattr, node, "orelse", []))


def _swap(old: ast.AST, new: type[ast.AST]) -> str:
    return f"{SIGNS[type(old)]} to {SIGNS[new]}"


def _joins(node: ast.BinOp | ast.AugAssign) -> bool:
    sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
    return any(
        isinstance(one, JOINED) or (isinstance(one, ast.Constant) and isinstance(one.value, str | bytes))
        for one in sides
    )


def _moot(parent: ast.AST) -> bool:
    """`while True`, and zip's `strict`, which only a bug would notice."""
    return isinstance(parent, COMPOUND) or (isinstance(parent, ast.keyword) and parent.arg == "strict")


def _other(value: float) -> float:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value * 2 or 1.0


def _returned(value: ast.expr, returns: str) -> tuple[str, ast.expr]:
    """Another value of the function's type if that is simple; None else."""
    if returns == "bool":
        return "the opposite", ast.UnaryOp(ast.Not(), value)
    if returns in ("int", "float"):
        return "1 more", ast.BinOp(value, ast.Add(), ast.Constant(1))
    return "None", ast.Constant(None)
