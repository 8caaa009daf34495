"""Rewrites a script to include a mod: one function per mod, which returns the new source, or None if that is not safe.

Positions come from the script's syntax tree, never from text patterns, and only the necessary text changes. The caller
of a rewrite checks that the new source compiles.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

OPTIMIZERS = {"Adam", "AdamW", "SGD", "Adagrad"}  # those with a fused implementation
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module)


class Script:
    """A source and its syntax tree. Converts tree positions into text offsets."""

    def __init__(self, source: str) -> None:
        self.source, self.tree = source, ast.parse(source)
        self.lines = source.splitlines(keepends=True)
        self.newline = "\r\n" if "\r\n" in source else "\n"
        self.nodes = list(ast.walk(self.tree))
        self.imports = [node for node in self.nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        self._above = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    def place(self, line: int, column: int) -> int:
        """The text offset of a tree position; columns of a tree count UTF-8 bytes."""
        return sum(map(len, self.lines[: line - 1])) + len(self.lines[line - 1].encode()[:column].decode())

    def text(self, node: ast.AST) -> str:
        return ast.get_source_segment(self.source, node) or ""

    def insert(self, *insertions: tuple[int, str]) -> str:
        """The source with texts inserted at these offsets."""
        source = self.source
        for place, text in sorted(insertions, reverse=True):
            source = source[:place] + text + source[place:]
        return source

    def new_line(self, statement: ast.stmt, *texts: str, before: bool = False) -> tuple[int, str]:
        """An insertion of separate lines after a statement (or before), with the same indentation."""
        indent = " " * statement.col_offset
        number = statement.lineno - 1 if before else (statement.end_lineno or statement.lineno)
        made = "".join(f"{indent}{text}{self.newline}" for text in texts)
        ends = number == 0 or self.lines[number - 1].endswith(("\n", "\r"))
        return sum(map(len, self.lines[:number])), made if ends else self.newline + made

    def alone(self, statement: ast.stmt) -> bool:
        """Whether no other statement shares the lines of this one: no `a = 1; b = 2`, no `if x: a = 1`."""
        first, last = self.lines[statement.lineno - 1], self.lines[(statement.end_lineno or statement.lineno) - 1]
        before = first.encode()[: statement.col_offset].decode()
        after = last.encode()[statement.end_col_offset :].decode().strip()
        return before.strip() == "" and "\t" not in before and (not after or after.startswith("#"))

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """A node and its ancestors, up to the module."""
        while True:
            yield node
            if node not in self._above:
                return
            node = self._above[node]

    def around(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that contains a node."""
        return next(one for one in self.above(node) if isinstance(one, ast.stmt))

    def function(self, node: ast.AST) -> ast.AST:
        """The innermost function that contains a node, or the module."""
        return next(one for one in self.above(node) if one is not node and isinstance(one, FUNCTIONS))

    def holds(self, outer: ast.AST, inner: ast.AST) -> bool:
        return any(one is outer for one in self.above(inner))

    def is_torch(self, function: ast.expr, module: str, names: set[str]) -> bool:
        """Whether this is one of torch's functions, judged by the imports: `torch.optim.SGD`, `optim.SGD`, or `SGD`."""
        if isinstance(function, ast.Attribute) and function.attr in names:
            return ast.unparse(function.value) in self._aliases(module)
        if isinstance(function, ast.Name):
            return any(
                isinstance(node, ast.ImportFrom)
                and node.module == module
                and any((alias.asname or alias.name) == function.id and alias.name in names for alias in node.names)
                for node in self.imports
            )
        return False

    def _aliases(self, module: str) -> set[str]:
        """The names under which the script imports a module."""
        found, (parent, _, last) = set(), module.rpartition(".")
        for node in self.imports:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name == module:
                        found.add(alias.asname or alias.name)
                    elif alias.name.partition(".")[0] == "torch" and not alias.asname:
                        found.add(module)
            elif node.module == parent:
                found |= {alias.asname or alias.name for alias in node.names if alias.name == last}
        return found

    def calls(self, module: str, names: set[str]) -> list[ast.Call]:
        return [call for call in self.all_calls() if self.is_torch(call.func, module, names)]

    def all_calls(self) -> list[ast.Call]:
        return [node for node in self.nodes if isinstance(node, ast.Call)]


def after_imports(*texts: str) -> Callable[[Script], str | None]:
    """Adds lines after the script's first imports, which must include torch."""

    def rewrite(script: Script) -> str | None:
        imports: list[ast.stmt] = []
        for node in script.tree.body:
            docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports.append(node)
            elif not docstring:
                break
        aliases = [alias for node in imports if isinstance(node, ast.Import) for alias in node.names]
        named = any(alias.name == "torch" and not alias.asname for alias in aliases)
        if not named or not script.alone(imports[-1]):
            return None
        place, made = script.new_line(imports[-1], *texts)
        return script.insert((place, script.newline + made))

    return rewrite


def fused_optimizer(script: Script) -> str | None:
    """Adds `fused=True` to every optimizer that supports it."""
    return _keywords(script, script.calls("torch.optim", OPTIMIZERS), "fused=True", unless={"fused", "foreach"})


def loader(processes: str, *, pinned: bool) -> Callable[[Script], str | None]:
    """Adds `num_workers` to every DataLoader, and `pin_memory` for a GPU."""

    def rewrite(script: Script) -> str | None:
        calls = script.calls("torch.utils.data", {"DataLoader"})
        text = f"num_workers={processes}" + (", pin_memory=True" if pinned else "")
        return _keywords(script, calls, text, unless={"num_workers", "pin_memory"})

    return rewrite


def _keywords(script: Script, calls: list[ast.Call], text: str, *, unless: set[str]) -> str | None:
    insertions = []
    for call in calls:
        given = {keyword.arg for keyword in call.keywords}
        if None in given or given & unless or any(isinstance(arg, ast.Starred) for arg in call.args):
            return None
        last = max((*call.args, *(k.value for k in call.keywords)), key=lambda n: (n.end_lineno, n.end_col_offset))
        place = script.place(last.end_lineno or last.lineno, last.end_col_offset or 0)
        insertions.append((place, f", {text}"))
    return script.insert(*insertions) if insertions else None


def models(script: Script) -> list[tuple[str, ast.stmt]]:
    """The trained models: names whose parameters an optimizer gets, each with the statement that makes it."""
    found: dict[str, ast.stmt] = {}
    for call in (call for call in script.all_calls() if _is_optimizer(script, call)):
        for inner in ast.walk(call):
            match inner:
                case ast.Attribute(attr="parameters" | "named_parameters", value=ast.Name() | ast.Attribute()):
                    found.setdefault(ast.unparse(inner.value), script.around(call))
    return list(found.items())


def _is_optimizer(script: Script, call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return script.is_torch(call.func, "torch.optim", {name})


def on_model(*texts: str) -> Callable[[Script], str | None]:
    """Adds lines after each model is made or, if it is made elsewhere, before its optimizer; {model} is its name. The
    lines must not assign to the name, because an assignment would make an outer variable local."""

    def rewrite(script: Script) -> str | None:
        insertions = []
        for name, optimizer in models(script):
            found = _made(script, name, optimizer)
            if found is None or not script.alone(found[0]):
                return None
            statement, before = found
            insertions.append(script.new_line(statement, *(text.format(model=name) for text in texts), before=before))
        return script.insert(*insertions) if insertions else None

    return rewrite


def _made(script: Script, name: str, optimizer: ast.stmt) -> tuple[ast.stmt, bool] | None:
    """The assignment whose value the optimizer sees, and False; or, if the name comes from outside the optimizer's
    function, the statement of that function that makes the optimizer, and True. None if other code may change the name
    in between."""
    block = _function_body(script, optimizer)
    outermost: ast.stmt | None = None
    while block:
        within = next(one for one in block if script.holds(one, optimizer))
        outermost = outermost or within
        earlier = [one for one in block[: block.index(within)] if _stores(one, name)]
        if earlier:
            last = earlier[-1]
            plain = isinstance(last, ast.Assign) and _targets(last) == [name]
            again = within is not optimizer and _stores(within, name)
            return (last, False) if plain and not again else None
        if within is optimizer:
            return outermost, True
        parts = [getattr(within, field, []) for field in ("body", "orelse", "finalbody")]
        block = next((part for part in parts if any(script.holds(one, optimizer) for one in part)), [])
    return None


def _function_body(script: Script, statement: ast.stmt) -> list[ast.stmt]:
    holder = script.function(statement)
    return holder.body if isinstance(holder, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module) else []


def _stores(statement: ast.stmt, name: str) -> bool:
    """Whether any part of the statement assigns to a name."""
    return any(
        isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node) == name
        for node in ast.walk(statement)
    )


def _targets(assignment: ast.Assign) -> list[str]:
    return [ast.unparse(target) for target in assignment.targets]


def precision(script: Script) -> str | None:
    """Wraps each line `output = model(inputs)` in autocast, and converts the output to float32 afterwards."""
    names = {name for name, _ in models(script)}
    calls = [call for call in script.all_calls() if ast.unparse(call.func) in names]
    source, newline = script.source, script.newline
    edits: list[tuple[int, int, str]] = []
    trained = 0
    for call in calls:
        statement = script.around(call)
        simple = (
            isinstance(statement, ast.Assign)
            and statement.value is call
            and len(statement.targets) == 1
            and isinstance(statement.targets[0], ast.Name)
            and statement.lineno == statement.end_lineno
            and script.alone(statement)
            and bool(call.args)
            and isinstance(call.args[0], ast.Name)
        )
        if not simple or not _is_tensor(script, statement):
            if _learns(script, statement):
                return None
            continue  # leaves evaluation unchanged
        assert isinstance(statement, ast.Assign)
        indent, target = " " * statement.col_offset, ast.unparse(statement.targets[0])
        made = (
            f"{indent}with torch.autocast({ast.unparse(call.args[0])}.device.type, torch.bfloat16):{newline}"
            f"{indent}    {script.text(statement)}{newline}"
            f"{indent}{target} = {target}.float(){newline}"
        )
        begin = sum(map(len, script.lines[: statement.lineno - 1]))
        edits.append((begin, begin + len(script.lines[statement.lineno - 1]), made))
        trained += _learns(script, statement)
    if not trained:
        return None
    for begin, end, made in sorted(edits, reverse=True):
        source = source[:begin] + made + source[end:]
    return source


def _learns(script: Script, statement: ast.stmt) -> bool:
    """Whether the same function computes gradients, before or after the statement."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == "backward" for node in ast.walk(script.function(statement))
    )


def _is_tensor(script: Script, statement: ast.stmt) -> bool:
    """Whether the assigned value is used as one tensor: passed to functions, or with attributes of a tensor."""
    assert isinstance(statement, ast.Assign)
    name = ast.unparse(statement.targets[0])
    used = False
    for node in ast.walk(script.function(statement)):
        if isinstance(node, ast.Call) and any(isinstance(arg, ast.Name) and arg.id == name for arg in node.args):
            used = True
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name:
            if node.attr in ("loss", "logits", "last_hidden_state", "items", "keys"):
                return False
            used = True
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == name:
            return False
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id == name:
            return False  # a, b = output
    return used
