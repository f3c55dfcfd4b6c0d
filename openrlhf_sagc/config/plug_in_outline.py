"""The outline of a reward's or agent's file: its installed imports, functions and classes, without what else the file does.

A file may start a server, or claim a port or a folder, at its import. Each engine imports it; the check before Ray has to
leave it as it is. So calls are not made, and modules that are not installed are found and not imported.
"""

import ast
import builtins
import importlib.util
import sys
import sysconfig
from types import ModuleType

CALLED = {"__init__", "__new__", "__call__", "execute", "reset", "step"}  # methods that OpenRLHF calls
PATHS = {"sys", "site", "subprocess", "importlib", "system"}  # what names them may bring modules that are not here yet
EFFECTS = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.Delete)


class Unknown:
    """Stands for what a statement of the file makes by running code."""

    def __init__(self, statement: ast.AST):
        self.may_be_class = any(isinstance(node, ast.ClassDef) for node in ast.walk(statement))


def outline(tree: ast.Module, path: str) -> tuple[ModuleType, bool]:
    """The module as far as it is known without running the file's own code.

    Args:
        tree: the parsed file, whose functions and classes lose what would run.
        path: of the file, which errors have.

    Returns:
        The module, in which `Unknown` stands for values that are not known; whether it may have more names than these.

    Raises:
        Exception: an import fails, or a statement without calls; as it would in an engine.
    """
    module = ModuleType("plug_in")
    module.__file__ = path
    names, skipped = vars(module), set[str]()
    for statement in tree.body:
        known = _known(statement, names, may_come=bool(skipped & PATHS))
        try:
            if known is not None:
                exec(compile(ast.Module([known], []), path, "exec"), names)
                continue
        except Exception as error:  # which what was skipped might have prevented
            if isinstance(error, ImportError) or not skipped and not isinstance(statement, ast.ClassDef):
                raise
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            skipped |= {_name(node) for node in ast.walk(statement)}
        names |= dict.fromkeys(_bound(statement), Unknown(statement))
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            names |= {name: Unknown(node) for name in node.names if name not in names}
    has_more = {"*", "__getattr__"} & names.keys() or {"globals", "exec", "setattr", "modules"} & skipped
    names.pop("__getattr__", None)  # the look for a name would run it
    return module, bool(has_more)


def _known(statement: ast.stmt, names: dict, may_come: bool) -> ast.stmt | None:
    """The statement without what it would run; None if nothing of it is known."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return statement if _is_imported(statement, may_come) else None
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return None if statement.decorator_list else _function(statement)
    if isinstance(statement, ast.ClassDef):
        return _class(statement, names)
    if not isinstance(statement, ast.Assign | ast.AugAssign) or any(
        isinstance(n, EFFECTS) for n in ast.walk(statement)
    ):
        return None
    loaded = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return statement if all(_is_known(name, names) for name in loaded) else None


def _is_imported(statement: ast.Import | ast.ImportFrom, may_come: bool) -> bool:
    """Whether to import it here: what is installed, and what is nowhere, whose error an engine would have too."""
    if isinstance(statement, ast.ImportFrom):
        tops = [(statement.module or "").partition(".")[0]] if not statement.level else [""]
    else:
        tops = [alias.name.partition(".")[0] for alias in statement.names]
    for top in filter(None, tops):
        if top in sys.stdlib_module_names or top in ("openrlhf", "openrlhf_sagc"):
            continue
        spec = importlib.util.find_spec(top)
        if may_come if spec is None else not _is_installed(spec.origin or ""):
            return False
    return True


def _is_installed(origin: str) -> bool:
    """Whether a module's file is one of Python's packages, and not one beside the plug-in."""
    return (
        "/site-packages/" in origin or "/dist-packages/" in origin or origin.startswith(sysconfig.get_path("stdlib"))
    )


def _function(function: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.stmt:
    """The function, whose defaults and annotations are not computed."""
    arguments = function.args
    for argument in (
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        arguments.vararg,
        arguments.kwarg,
    ):
        if argument:
            argument.annotation = None
    none = ast.copy_location(ast.Constant(None), function)
    arguments.defaults = [none] * len(arguments.defaults)
    arguments.kw_defaults = [default and none for default in arguments.kw_defaults]
    function.returns, function.decorator_list = None, []
    return function


def _class(made: ast.ClassDef, names: dict) -> ast.stmt | None:
    """The class with its plain methods alone; None if what OpenRLHF calls, or a base, comes of running code."""
    bases = [node for base in made.bases for node in ast.walk(base)]
    if (
        made.decorator_list
        or made.keywords
        or not all(isinstance(n, ast.Name | ast.Attribute | ast.Load) for n in bases)
    ):
        return None
    if not all(_is_known(node.id, names) for node in bases if isinstance(node, ast.Name)):
        return None
    methods = [node for node in made.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    plain = [method for method in methods if not method.decorator_list]
    others = [node for node in made.body if node not in plain]
    if CALLED & {name for node in others for name in _bound(node)}:
        return None
    made.body = [_function(method) for method in plain] or [ast.copy_location(ast.Pass(), made)]
    return made


def _is_known(name: str, names: dict) -> bool:
    return not isinstance(names.get(name), Unknown) and (name in names or hasattr(builtins, name))


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _bound(statement: ast.AST) -> set[str]:
    """The names that a statement may bind; * for those of a module."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    bound = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    return bound
