"""The stubs are those of the package as it is, and every public name says what it is."""
import ast
import inspect
import pathlib

import pytest

import tamis
from tamis import _core

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "python" / "tamis"
STUB = ast.parse((FOLDER / "__init__.pyi").read_text())
STATED = {node.name: node for node in STUB.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
CLASSES = [name for name in tamis.__all__ if inspect.isclass(getattr(tamis, name)) and name != "View"]
FUNCTIONS = [name for name in tamis.__all__ if inspect.isfunction(getattr(tamis, name))]
PROPERTIES = {"Error", "BlockLists", "Candidates", "Case", "Plan", "Schedule"}  # whose docstrings name attributes


def test_the_stub_of_core_is_generated():
    nanobind = pytest.importorskip("nanobind", reason="nanobind's stubgen")
    if not nanobind.__version__.startswith("3.1."):
        pytest.skip(f"stubs are written by nanobind 3.1, here is {nanobind.__version__}")
    from nanobind.stubgen import StubGen
    generator = StubGen(_core)
    generator.put(_core)
    assert generator.get() == (FOLDER / "_core.pyi").read_text(), (
        "write it anew: python -m nanobind.stubgen -q -m tamis._core -o python/tamis/_core.pyi")


def test_installed_stubs_are_these():
    for name in ("__init__.pyi", "_core.pyi", "py.typed"):
        installed = pathlib.Path(tamis.__file__).with_name(name)
        assert installed.read_text() == (FOLDER / name).read_text()


def test_every_public_name_is_in_the_stub():
    listed = next(ast.literal_eval(node.value) for node in STUB.body
                  if isinstance(node, ast.Assign) and node.targets[0].id == "__all__")
    assert listed == tamis.__all__ == sorted(tamis.__all__, key=lambda name: (name.lower() == name, name))
    variables = {node.target.id for node in STUB.body if isinstance(node, ast.AnnAssign)}
    imported = {alias.asname for node in STUB.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(tamis.__all__) <= STATED.keys() | variables | imported
    assert {name for name in STATED if not name.startswith("_")} <= set(tamis.__all__)


def signature_of(node):
    """[(name, kind, default as it is written or None)] of a stub's function."""
    a = node.args
    positional = [*a.posonlyargs, *a.args]
    defaults = [None] * (len(positional) - len(a.defaults)) + list(a.defaults)
    assert a.vararg is None and a.kwarg is None
    return [(arg.arg, kind, None if default is None else ast.unparse(default))
            for args, kind, values in ((positional, "positional", defaults), (a.kwonlyargs, "keyword", a.kw_defaults))
            for arg, default in zip(args, values)]


def same_signature(node, function):
    stated = signature_of(node)
    real = []
    for p in inspect.signature(function).parameters.values():
        assert p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        plain = p.default is None or isinstance(p.default, (bool, int, float, str))
        default = None if p.default is p.empty else repr(p.default) if plain else "..."
        real.append((p.name, "keyword" if p.kind is p.KEYWORD_ONLY else "positional", default))
    assert stated == real
    arguments = [*node.args.args, *node.args.kwonlyargs]
    assert all(arg.annotation is not None for arg in arguments if arg.arg not in ("self", "cls"))
    assert node.returns is not None


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    function = getattr(tamis, name)
    same_signature(STATED[name], function)
    assert inspect.getdoc(function)


def own(name):
    """Public members that a class itself defines."""
    members = {key: value for key, value in vars(getattr(tamis, name)).items() if not key.startswith("_")}
    if name in ("BlockLists",):
        members = {}
    return {key: value for key, value in members.items() if not inspect.ismemberdescriptor(value)}


@pytest.mark.parametrize("name", CLASSES)
def test_classes(name):
    kind, node = getattr(tamis, name), STATED[name]
    assert inspect.getdoc(kind)
    stated = {member.name: member for member in node.body if isinstance(member, ast.FunctionDef)}
    for key, value in own(name).items():
        assert key in stated, key
        decorators = [ast.unparse(d) for d in stated[key].decorator_list]
        if isinstance(value, property):
            assert decorators == ["property"] and stated[key].returns is not None
            assert inspect.getdoc(value), key
            continue
        assert decorators == (["classmethod"] if isinstance(value, classmethod) else []), key
        function = getattr(value, "__func__", value)
        same_signature(stated[key], function)
        assert inspect.getdoc(function), key
    assert {key for key in stated if not key.startswith("_")} == own(name).keys()
    if "__init__" in stated:
        same_signature(stated["__init__"], kind.__init__)


@pytest.mark.parametrize("name", sorted(PROPERTIES))
def test_attributes_are_there(name, tmp_path):
    """Attributes that a stub states without a property."""
    import numpy as np
    q = np.zeros((1, 1, 1, 8), np.float32)
    plan = tamis.plan(q, q, q, tamis.ALL)
    index = tamis.normalize(plan=plan)
    made = {"Error": lambda: tamis.Error("unsupported", "x"), "BlockLists": index.to_block_mask,
            "Candidates": lambda: tamis.ALL, "Plan": lambda: plan, "Schedule": lambda: tamis.schedule(plan, index),
            "Case": lambda: pytest.skip("a build without case files")}
    if tamis.build_info()["case_files"]:
        tamis.save_case(tmp_path / "case", q, q, q)
        made["Case"] = lambda: tamis.load_case(tmp_path / "case")
    one = made[name]()
    for node in STATED[name].body:
        if isinstance(node, ast.AnnAssign):
            assert hasattr(one, node.target.id), node.target.id


def test_names_without_a_signature():
    assert inspect.getdoc(tamis.View) and inspect.getdoc(tamis.build_info)
    assert isinstance(tamis.ALL, tamis.Candidates) and "tamis.ALL" in inspect.getdoc(tamis.Candidates)
    assert inspect.getdoc(tamis)
