"""The house rules that a reader relies on: imports go one way, optional packages stay in their adapters."""
import ast
import os
import re
import subprocess
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "hloc"

# The order of processing: a part may import what stands before it, never what stands behind.
ORDER = ["source_lines", "errors", "settings", "processes", "workers", "interrupts", "sanitize", "files", "archives", "limits", "machine", "cache", "patterns", "phrases", "ir", "sharding", "devices", "inputs", "ops", "text", "proto", "bundles", "sources",
         "verify", "evaluate", "analysis", "passes", "kernels", "run_trace", "binding", "executable", "bounded", "targets", "jax_adapter", "functions", "api", "parallel", "tools", "pages", "explore", "cli", "__main__"]
# The order within the parts that make code: of folders and files, those that one line names side by side do not import
# each other. "" stands for all files that no line names.
LAYERS = {
    "kernels": ("", "rules text", "group", "elemental", "products reductions library_kernels", "attention", "lower collectives overlap", "kernel_table", "plan_state", "launches control_flow", "planner",
                "memory"),
    "targets": ("", "cpu cuda", "__init__"),
}
# One adapter file (or two) for each package that may be missing.
ADAPTERS = {"pycuda": {"targets/cuda/execution/context.py"}, "mpi4py": {"evaluate/mpi.py"},
            "jax": {"jax_adapter.py", "text/stablehlo_sizes.py", "tools/xla.py", "tools/conformance/judge.py"}, "torch": set(),
            "starlette": {"explore/server.py", "cli/explore.py"}, "uvicorn": {"explore/server.py", "cli/explore.py"}}


def modules():
    return sorted(p for p in PACKAGE.rglob("*.py") if p.name != "__init__.py" or p.parent != PACKAGE)


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Full names of all modules that a file imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names if node.module == "hloc")
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return frozenset(found)


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def test_imports_go_one_way():
    wrong = []
    for path in modules():
        mine = ORDER.index(part_of(path))
        for name in imports_of(path):
            pieces = name.split(".")
            if pieces[0] == "hloc" and len(pieces) > 1 and pieces[1] in ORDER and ORDER.index(pieces[1]) > mine:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert wrong == []


def test_imports_within_a_part_go_one_way():
    wrong = []
    for part, lines in LAYERS.items():
        places = {name: number for number, line in enumerate(lines) for name in line.split(" ")}

        def place(path: Path) -> tuple[str, int]:
            """The folder or file of a layer, and the number of the layer."""
            name = path.relative_to(PACKAGE / part).with_suffix("").parts[0]
            return (name, places[name]) if name in places else ("", places[""])
        assert {place(p)[0] for p in (PACKAGE / part).rglob("*.py")} == places.keys(), "a name of no file"
        files = {".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): p
                 for p in (PACKAGE / part).rglob("*.py")}
        for path in files.values():
            name, mine = place(path)
            for imported in _modules_imported(path, files.keys()):
                other, theirs = place(files[imported])
                if theirs > mine or theirs == mine and other != name:
                    wrong.append(f"{path.relative_to(PACKAGE)} imports {imported}")
    assert wrong == []


def _modules_imported(path: Path, known: Collection[str]) -> set[str]:
    """Modules of `known` that a file imports when it runs, inside functions too; what is imported for types alone does
    not run. A part of a package counts as itself, not as the package."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= parts & known or {node.module} & known
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known
    return found


def test_no_module_imports_itself_by_way_of_others():
    files = {".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): p
             for p in PACKAGE.rglob("*.py")}
    left = {name: _modules_imported(p, files.keys()) for name, p in files.items()}
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    assert left == {}, {name: sorted(needs & left.keys()) for name, needs in left.items()}


def test_optional_packages_stay_in_their_adapters():
    for package, adapters in ADAPTERS.items():
        users = {str(p.relative_to(PACKAGE)) for p in modules() if any(n.split(".")[0] == package for n in imports_of(p))}
        assert users <= adapters


# What regular expressions read in the parts that make code: nothing that hloc printed as C.
PATTERNS = {"kernels/vectors.py": "types", "kernels/schedule/steps.py": "schedules by hand",
            "kernels/schedule/file.py": "schedules by hand", "kernels/group.py": "names", "kernels/text/printer.py": "names", "targets/printer.py": "comments",
            "targets/inlining.py": "names, and the headers that ship with hloc",
            "targets/cpu/program/single_file.py": "the headers that ship with hloc",
            "targets/cpu/building/toolchain.py": "options, and what compilers say",
            "targets/cpu/execution/executable.py": "names",
            "targets/cuda/resources.py": "what ptxas says", "targets/cuda/gpus.py": "names of GPUs",
            "targets/cuda/compiler.py": "what nvcc says"}


def test_no_text_that_hloc_printed_is_parsed():
    """A function knows what it calls, includes and costs (targets/c_function.py)."""
    users = {str(p.relative_to(PACKAGE)) for part in LAYERS for p in (PACKAGE / part).rglob("*.py")
             if "re" in imports_of(p)}
    assert users == PATTERNS.keys()


def test_nothing_is_unpickled():
    for path in modules():
        names = imports_of(path)
        assert not names & {"pickle", "cPickle", "dill", "marshal", "shelve"}, path
        assert "allow_pickle=True" not in path.read_text(encoding="utf-8"), path


def test_the_wheel_lists_every_package():
    listed = (PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")
    packages = {p.parent for p in PACKAGE.rglob("*.py")}
    for folder in packages:
        name = ".".join(folder.relative_to(PACKAGE.parent).parts)
        assert f'"{name}"' in listed, name


# What few modules need, or only a compilation: `hloc run` of a program that lies in the cache starts without.
LATE = ("hloc.passes", "hloc.kernels.planner", "hloc.kernels.builder", "hloc.evaluate",
        "hloc.ops.known_calls", "hloc.ops.vendors.linear_algebra", "hloc.ops.vendors.library_configs", "hloc.text.syntax_errors",
        "hloc.targets.cpu.building.build", "hloc.targets.cpu.program", "hloc.targets.printer", "hloc.targets.cuda",
        "hloc.proto")
# What no ordinary module needs, be it compiled for the first time.
RARE = ("hloc.passes.known_calls", "hloc.passes.dynamic_padder.walk", "hloc.ops.known_calls", "hloc.ops.vendors.library_configs",
        "hloc.targets.cuda", "hloc.proto", "hloc.evaluate", "hloc.text.syntax_errors", "hloc.passes.rng_",
        "hloc.passes.while_", "hloc.passes.cholesky", "hloc.passes.batch_norm", "hloc.passes.attention_gradient",
        "hloc.kernels.attention.attention", "hloc.kernels.attention.gradient", "hloc.kernels.reductions.window",
        "hloc.kernels.library_kernels")


def test_compilations_and_runs_from_the_cache_import_no_more_than_they_need(tmp_path):
    source = ("import sys\nimport numpy as np\nimport hloc, hloc.cli.run\n"
              "exe = hloc.compile('ENTRY e {\\n p = f32[2] parameter(0) ROOT n = f32[2] negate(p) }', 'cpu')\n"
              "assert exe(np.float32([1, -2]))[0].tolist() == [-1, 2]\n"
              "print(*(name for name in sys.modules if name.startswith('hloc')))\n")
    environment = {**os.environ, "HLOC_CACHE_DIR": str(tmp_path)}
    for late in (RARE, LATE):
        done = subprocess.run([sys.executable, "-c", source], cwd=PACKAGE.parent, env=environment, text=True,
                              capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert [name for name in done.stdout.split() if name.startswith(late)] == []


def test_lines_of_c_and_cuda_fit_a_page():
    """As ruff sees to for Python."""
    long = [f"{path.relative_to(PACKAGE)}:{number}" for suffix in ("h", "c", "cuh") for path in PACKAGE.rglob(f"*.{suffix}")
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if len(line) > 120]
    assert long == []


# Words that a compiler engineer does not know in these senses, and what is said for them.
COINAGES = {"routine": "library kernel", "turned": "transposed", "turning": "transposing", "way": "algorithm or variant",
            "apart": "fission, disjoint, separate", "rests": "tail or remainder", "beside": "adjacent",
            "together": "batched, concurrent, joined", "dealt": "distributed", "told": "reported", "kept_rows": "cache_read",
            "flat_rows": "collapsed loops"}


def test_names_are_the_fields():
    """Names of files, classes, functions of modules and methods, options, and C functions and macros. LAPACK's own
    word for its functions is routine."""
    names: set[tuple[str, str]] = set()
    for path in (*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.[ch]"), *PACKAGE.rglob("*.cuh")):
        place = path.relative_to(PACKAGE).as_posix()
        if "lapack" in place:
            continue
        text = path.read_text(encoding="utf-8")
        names |= {(place, part) for part in path.relative_to(PACKAGE).with_suffix("").parts}
        if path.suffix == ".py":
            names |= {(place, node.name) for node in ast.walk(ast.parse(text))
                      if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
            names |= {(place, option) for option in re.findall(r'"--([a-z-]+)"', text)}
        else:
            names |= {(place, name) for name in re.findall(r"\bhloc_\w+", text, re.IGNORECASE)}
    words = re.compile("|".join(rf"(?<![a-z]){coinage}s?(?![a-z])" for coinage in COINAGES))
    wrong = [f"{place}: {name}" for place, name in sorted(names)
             if words.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()) and "LAPACK" not in name]
    assert not wrong, f"{', '.join(wrong)}: say {COINAGES}"
