"""Imports follow one direction: a package imports only packages below it, and no two modules import each other."""

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {
    "syrinx_operator": ROOT / "operator/syrinx_operator",
    "syrinx_stages": ROOT / "stages/syrinx_stages",
    "training": ROOT / "training",
    "gpu": ROOT / "bench/gpu",
    "hop": ROOT / "bench/hop",
    "live_text": ROOT / "bench/live_text",
    "live_tuning": ROOT / "bench/live_tuning",
    "scale": ROOT / "bench/scale",
    "simulator": ROOT / "bench/simulator",
}
_OPERATOR = {
    "resource": {"contract"},
    "observed": {"resource", "contract"},
    "tuner": {"resource", "observed", "contract", "scheduling"},
    "cluster": {"resource", "observed", "tuner", "contract"},
    "local": {"resource", "observed", "tuner", "contract", "connector", "processes", "runtime"},
    "commands": {
        *("resource", "observed", "tuner", "cluster", "local"),
        *("contract", "processes", "runtime", "model", "fetch", "gateway"),
    },
    "main": {"cluster", "contract"},
    "__main__": {"commands"},
}
_STAGES = {
    "contract": set(),
    "kernels": set(),
    "connector": {"contract"},
    "normalization": {"contract"},
    "model": {"contract", "normalization"},
    "scheduling": {"contract"},
    "runtime": {"contract", "connector", "model", "scheduling"},
    "fetch": {"contract", "runtime", "model"},
    "talker": {"contract", "connector", "runtime", "model", "normalization", "kernels", "scheduling"},
    "codec": {"contract", "connector", "runtime", "model", "kernels", "scheduling"},
    "talker_vllm": {"contract", "runtime", "model", "kernels", "talker"},
    "families": {"contract", "runtime", "model", "talker", "codec", "talker_vllm"},
    "assembly": {"contract", "connector", "runtime", "families", "kernels", "talker", "codec"},
    "processes": set(),
    "colocated": {"contract", "processes", "runtime"},
    "gateway": {"contract", "connector", "runtime", "families", "model", "normalization"},
}


def _qualified(name: str) -> str:
    return f"syrinx_operator.{name}" if name in _OPERATOR else f"syrinx_stages.{name}"


ALLOWED = {
    _qualified(package): {_qualified(each) for each in below}
    for packages in (_OPERATOR, _STAGES)
    for package, below in packages.items()
}
"""The packages of the project that each package may import besides itself."""
CLUSTER = ("objects", "watch", "plan", "report", "runners", "config", "reconcile", "operator")
"""The rooms of `syrinx_operator.cluster`; each imports only those before it."""
FORBIDDEN = {"syrinx_operator": {"torch"}, "syrinx_stages": {"kopf", "kubernetes", "syrinx_operator"}}
"""Top-level packages that a source tree never imports, not even late."""


@cache
def modules() -> dict[str, Path]:
    """Module names to files."""
    found = {}
    for package, folder in SOURCES.items():
        for file in sorted(folder.rglob("*.py")):
            parts = (package, *file.relative_to(folder).with_suffix("").parts)
            found[".".join(parts).removesuffix(".__init__")] = file
    return found


@cache
def imports(module: str) -> frozenset[str]:
    """Names that a module imports, inside functions and type-checking blocks too."""
    tree = ast.parse(modules()[module].read_text())
    is_package = modules()[module].name == "__init__.py"
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: len(module.split(".")) - node.level + is_package] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{source}.{alias.name}" for alias in node.names}
    return frozenset(found)


@cache
def internal(module: str) -> frozenset[str]:
    """The project's modules that a module imports."""
    found = set()
    for name in imports(module):
        found.add(name if name in modules() else name.rpartition(".")[0])
    return frozenset(found & modules().keys()) - {module}


def room(module: str) -> str:
    """The package of a module, two levels deep."""
    return ".".join(module.split(".")[:2])


def test_no_modules_import_each_other():
    # A package's __init__ runs before its modules; a module that imports it is no circle.
    graph = {module: internal(module) for module in modules()}
    graph = {module: {each for each in found if not module.startswith(f"{each}.")} for module, found in graph.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_every_package_has_a_place_in_an_order_without_circles():
    TopologicalSorter(ALLOWED).prepare()
    packages = {room(module) for module in modules() if module.split(".")[0] in FORBIDDEN and "." in module}
    assert packages == set(ALLOWED)


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_is_below_it(package):
    members = [module for module in modules() if room(module) == package]
    assert members
    wrong = {
        (module, name)
        for module in members
        for name in internal(module)
        if room(name) not in {package, *ALLOWED[package]} and room(name) != name.split(".")[0]
    }
    assert not wrong


def test_the_rooms_of_the_cluster_import_only_those_before_them():
    prefix = "syrinx_operator.cluster."
    wrong = set()
    for module in (each for each in modules() if each.startswith(prefix)):
        place = CLUSTER.index(module.removeprefix(prefix).split(".")[0])
        found = {name.removeprefix(prefix).split(".")[0] for name in internal(module) if name.startswith(prefix)}
        wrong |= {(module, each) for each in found if CLUSTER.index(each) > place}
    assert not wrong


@pytest.mark.parametrize("tree", FORBIDDEN)
def test_a_source_tree_imports_no_dependency_of_another(tree):
    wrong = {
        (module, name)
        for module in modules()
        if module.split(".")[0] == tree
        for name in imports(module)
        if name.split(".")[0] in FORBIDDEN[tree]
    }
    assert not wrong


def test_the_optional_vllm_engine_is_imported_by_the_family_alone():
    users = {module for module in modules() for name in internal(module) if room(name) == "syrinx_stages.talker_vllm"}
    assert {room(module) for module in users} == {"syrinx_stages.talker_vllm", "syrinx_stages.families"}


INSTALLATION = ("docker", "charts", "deploy", "Makefile", "pyproject.toml")
"""What names modules besides Python: images, manifests, and commands."""


def test_every_module_that_the_installation_names_exists():
    paths = [path for name in INSTALLATION for path in (ROOT / name, *(ROOT / name).rglob("*"))]
    files = [path for path in paths if path.is_file() and path.suffix != ".pyc"]
    named = {name for file in files for name in re.findall(r"\bsyrinx_(?:operator|stages)(?:\.\w+)+", file.read_text())}
    assert len(named) > 10 and {name for name in named if name not in modules()} == set()
