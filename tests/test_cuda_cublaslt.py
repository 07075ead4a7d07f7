"""cuBLASLt in the place of own kernels: what is called, with which layouts, against the evaluator; by a stand-in."""
from __future__ import annotations

import ctypes
import shutil

import numpy as np
import pytest
from cuda_emulation import driver
from cuda_emulation.cublaslt import FakeCublasLt
from kernel_harness import compare
from test_cuda_runtime import H100

from hloc import api
from hloc.errors import RunError
from hloc.evaluate import evaluate
from hloc.inputs import check_arrays
from hloc.inputs.sensible import sensible_arrays
from hloc.kernels.ir import Tile
from hloc.targets.cuda import container
from hloc.targets.cuda.execution.runtime import CudaBackend
from hloc.targets.cuda.libraries import cublaslt
from hloc.targets.cuda.libraries import products as library_products
from hloc.targets.cuda.libraries.cublaslt import LtProduct, Matrix
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target
from hloc.targets.cuda.tiles.source import LIBRARY, variants

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
BROADCAST = "  {name}s = {t}[] constant({value})  {name} = {t}[{shape}] broadcast({name}s), dimensions={{}}\n"


def dot(m: int, n: int, k: int, type: str = "f32", lhs: str = "", rhs: str = "", result: str = "", rest: str = "", batch: str = "") -> str:
    """A product of parameters a and b, which may lie the other way around ("k,m"); d is its name."""
    b = f"{batch}," if batch else ""
    depth = 1 if batch else 0
    left, right = lhs or f"{b}{m},{k}", rhs or f"{b}{k},{n}"
    own = f"lhs_contracting_dims={{{depth + (not lhs)}}}, rhs_contracting_dims={{{depth + bool(rhs)}}}"
    own += ", lhs_batch_dims={0}, rhs_batch_dims={0}" if batch else ""
    return (f"HloModule m\nENTRY e {{\n  a = {type}[{left}] parameter(0)  b = {type}[{right}] parameter(1)\n"
            f"  {'' if rest else 'ROOT '}d = {result or type}[{b}{m},{n}] dot(a, b), {own}\n{rest}}}\n")


def bias(type: str, shape: str, dimension: int = 1) -> str:
    sizes = shape.split(",")
    return (f"  c = {type}[{sizes[dimension]}] parameter(2)  cb = {type}[{shape}] broadcast(c), dimensions={{{dimension}}}\n"
            f"  x = {type}[{shape}] add(d, cb)\n")


def relu(type: str, shape: str, of: str) -> str:
    return BROADCAST.format(name="zero", t=type, value=0, shape=shape) + f"  ROOT r = {type}[{shape}] maximum({of}, zero)\n"


def gelu(type: str, shape: str, of: str) -> str:
    text = "".join(BROADCAST.format(name=n, t=type, value=v, shape=shape)
                   for n, v in (("cubic", 0.044715), ("scale", 0.7978845608), ("one", 1), ("half", 0.5)))
    steps = (("x2", f"multiply({of}, {of})"), ("x3", f"multiply(x2, {of})"), ("y", "multiply(cubic, x3)"), ("z", f"add({of}, y)"),
             ("w", "multiply(scale, z)"), ("th", "tanh(w)"), ("u", "add(one, th)"), ("v", "multiply(half, u)"), ("ROOT r", f"multiply({of}, v)"))
    return text + "".join(f"  {name} = {type}[{shape}] {value}\n" for name, value in steps)


# name -> (module, epilogue, operand "a" of the library transposed, "b" transposed)
PRODUCTS = {
    "plain": (dot(48, 40, 56), "", False, False),
    "lhs the other way": (dot(48, 40, 56, lhs="56,48"), "", False, True),
    "rhs the other way": (dot(48, 40, 56, rhs="40,56"), "", True, False),
    "both the other way": (dot(48, 40, 56, lhs="56,48", rhs="40,56"), "", True, True),
    "bf16": (dot(48, 40, 56, "bf16"), "", False, False),
    "f16 to f32": (dot(48, 40, 56, "f16", result="f32"), "", False, False),
    "f64": (dot(48, 40, 56, "f64"), "", False, False),
    "s8": (dot(48, 40, 56, "s8", result="s32"), "", False, False),
    "batches": (dot(24, 40, 16, batch="6"), "", False, False),
    "bias": (dot(48, 40, 56, rest=bias("f32", "48,40").replace("  x =", "  ROOT x =")), "bias", False, False),
    "bf16 bias": (dot(48, 40, 56, "bf16", rest=bias("bf16", "48,40").replace("  x =", "  ROOT x =")), "bias", False, False),
    "relu": (dot(48, 40, 56, rest=relu("f32", "48,40", "d")), "relu", False, False),
    "bias and relu": (dot(48, 40, 56, rest=bias("f32", "48,40") + relu("f32", "48,40", "x")), "relu_bias", False, False),
    "gelu": (dot(48, 40, 56, rest=gelu("f32", "48,40", "d")), "gelu", False, False),
    "bias and gelu": (dot(48, 40, 56, "bf16", rest=bias("bf16", "48,40") + gelu("bf16", "48,40", "x")), "gelu_bias", False, False),
}


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    driver.install(monkeypatch)
    monkeypatch.setattr(library_products, "SMALLEST", 1)
    FakeCublasLt.alive.clear()
    library = FakeCublasLt()
    monkeypatch.setattr(cublaslt, "library", lambda: library)
    return library


def planned(text: str):
    target = cuda_target(H100)
    return api.plan(api.optimize(api.load(text), target), target)


def product_of(text: str) -> LtProduct | None:
    (tile,) = (k for k in planned(text).kernels if isinstance(k, Tile))
    assert (LIBRARY in variants(tile, H100)) == (library_products.library_product(tile) is not None)
    return library_products.library_product(tile)


def backend_for(text: str) -> CudaBackend:
    program = planned(text)
    sources = make_sources(program, H100, [LIBRARY if isinstance(k, Tile) else "" for k in program.kernels])
    own = sources.program
    return CudaBackend(container.Container(
        own.name, "sm_90a", driver.images_of(sources), sources.geometry, own.steps, own.parameters, own.results, own.constants,
        own.arena_size), {})


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name, emulated):
    """Twice: kernel by kernel, and as a graph."""
    text, epilogue, *transposed = PRODUCTS[name]
    module = api.load(text)
    arrays = sensible_arrays(module, 3)
    backend = backend_for(text)
    for _ in range(2):
        (result,) = backend(check_arrays(backend.packed.parameters, arrays))
        compare(name, result, evaluate(module, arrays)[0])
    assert len(emulated.calls) == 2
    call = emulated.calls[0].attributes
    assert cublaslt.EPILOGUES[epilogue] == call[cublaslt.EPILOGUE]
    assert [bool(call[n]) for n in (cublaslt.TRANSA, cublaslt.TRANSB)] == transposed
    backend.close()
    assert not FakeCublasLt.alive


OTHERS = {
    "another epilogue": dot(48, 40, 56, rest="  ROOT r = f32[48,40] sine(d)\n"),
    "a bias along the rows": dot(48, 40, 56, rest=bias("f32", "48,40", 0).replace("  x =", "  ROOT x =")),
    "gelu by erf": dot(48, 40, 56, rest="  e = f32[48,40] erf(d)\n  ROOT r = f32[48,40] multiply(d, e)\n"),
    "gelu of another constant": dot(48, 40, 56, rest=gelu("f32", "48,40", "d").replace("0.044715", "0.1")),
    "a lower bound that is not 0": dot(48, 40, 56, rest=relu("f32", "48,40", "d").replace("constant(0)", "constant(0.1)")),
    "two results": dot(48, 40, 56, rest="  n = f32[48,40] negate(d)\n  ROOT r = (f32[48,40], f32[48,40]) tuple(d, n)\n"),
    "integers": dot(48, 40, 56, "s32"),
    "wide integers": dot(48, 40, 56, "s64"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_products_of_another_kind(name):
    """These stay with the own kernels."""
    assert product_of(OTHERS[name]) is None


def test_small_products_are_not_worth_a_call(monkeypatch):
    monkeypatch.undo()
    assert product_of(dot(48, 40, 56)) is None and product_of(dot(512, 512, 512)) is not None


def test_a_bias_along_the_rows_of_an_exchanged_product():
    """d is read transposed, so that it lies column by column: the bias of its rows is one the library has."""
    text = dot(48, 40, 56, rest="  ROOT t = f32[40,48] transpose(d), dimensions={1,0}\n")
    assert product_of(text) is not None


def test_the_file_holds_the_call(tmp_path, monkeypatch):
    """Written, read, run; facts that do not fit their arguments are refused."""
    text, *_ = PRODUCTS["bias and gelu"]
    backend = backend_for(text)
    packed = backend.packed
    program = planned(text)._replace(steps=packed.steps, arena_size=packed.arena_size)
    with open(tmp_path / "m.cubin", "w+b") as file:
        container.write(file, packed.images, program, packed.kernels, "sm_90a", 13000)
    again = container.read(tmp_path / "m.cubin")
    assert again.kernels == packed.kernels and again.kernels[0].product.epilogue == "gelu_bias"
    product = again.kernels[0].product
    for wrong in (product._replace(a=product.a._replace(rows=1 << 30)), product._replace(d=product.d._replace(argument=9)),
                  product._replace(a=product.a._replace(leading=1 << 40)), product._replace(element="s4"),
                  product._replace(epilogue="swish"), product._replace(bias=-1)):
        kernels = [again.kernels[0]._replace(product=wrong)]
        with open(tmp_path / "w.cubin", "w+b") as file:
            container.write(file, packed.images, program, kernels, "sm_90a", 13000)
        with pytest.raises(RunError, match="not a complete file that hloc wrote"):
            container.read(tmp_path / "w.cubin")


def test_no_library(monkeypatch):
    def missing(name):
        raise OSError(name)
    monkeypatch.undo()
    monkeypatch.setattr(cublaslt.ctypes, "CDLL", missing)
    with pytest.raises(RunError, match="cuBLASLt is not installed") as caught:
        cublaslt.library()
    assert caught.value.code == 6 and "hloc[cublas]" in caught.value.hint


def _loads(name: str) -> bool:
    try:
        return bool(ctypes.CDLL(name))
    except OSError:
        return False


def test_no_algorithm(monkeypatch):
    monkeypatch.setattr(FakeCublasLt, "refuses", (0,))
    with pytest.raises(RunError, match=r"cuBLASLt has no algorithm for f32 40x48 \(status 15\)"):
        backend_for(PRODUCTS["plain"][0])
    assert driver.Context.depth == 0


def test_matrices_as_they_are_told():
    assert product_of(dot(48, 40, 56, lhs="56,48")) == LtProduct(
        "f32", "f32", "f32", 1, Matrix(1, 0, 40, 56, 40, 0), Matrix(0, 0, 48, 56, 48, 0, True), Matrix(2, 0, 40, 48, 40, 0))
    assert product_of(dot(24, 40, 16, batch="6")).b == Matrix(0, 0, 16, 24, 16, 384)


def test_descriptors_of_the_real_library():
    """It keeps what it is told, attribute by attribute; no GPU is asked."""
    try:
        loaded = ctypes.CDLL(cublaslt.NAMES[0]) if _loads(cublaslt.NAMES[0]) else _installed()
    except RunError:
        pytest.skip("cuBLASLt is not installed: pip install nvidia-cublas")
    lt = cublaslt.CublasLt.__new__(cublaslt.CublasLt)
    lt.library = loaded
    product = LtProduct("bf16", "f32", "f32", 3, Matrix(0, 0, 64, 32, 72, 4608), Matrix(1, 0, 16, 32, 16, 512, True),
                        Matrix(2, 0, 64, 16, 64, 1024), "gelu_bias", 3, "f32")
    description = lt._description(product)
    lt._set(description, cublaslt.BIAS_POINTER, ctypes.c_void_p(4096))
    wanted = {0: (4, 68), 1: (4, 0), cublaslt.TRANSA: (4, 0), cublaslt.TRANSB: (4, 1), cublaslt.EPILOGUE: (4, 36),
              cublaslt.BIAS_POINTER: (8, 4096), cublaslt.BIAS_DATA_TYPE: (4, 0)}
    assert {n: _attribute(loaded.cublasLtMatmulDescGetAttribute, description, n, size) for n, (size, _) in wanted.items()} == \
        {n: value for n, (_, value) in wanted.items()}
    layout = lt._layout(product.a, "bf16", 3)
    sizes = {0: 4, 2: 8, 3: 8, 4: 8, cublaslt.BATCH_COUNT: 4, cublaslt.BATCH_STRIDE: 8}
    assert [_attribute(loaded.cublasLtMatrixLayoutGetAttribute, layout, n, s) for n, s in sizes.items()] == [14, 64, 32, 72, 3, 4608]


def _installed():
    import importlib.util
    from pathlib import Path
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in Path(folder).glob("*/lib/libcublasLt.so.*"):
            return ctypes.CDLL(str(path))
    raise RunError("not installed")


def _attribute(get, thing, number: int, size: int) -> int:
    value, written = ctypes.c_uint64(), ctypes.c_size_t()
    status = get(thing, number, ctypes.byref(value), ctypes.c_size_t(size), ctypes.byref(written))
    assert status == 0 and written.value == size, (number, status, written.value)
    return value.value


def test_measured_against_the_own_tiles(monkeypatch):
    """The library is one more variant, and is taken where it is the fastest; where it is not here, the file says so."""
    from cuda_emulation.driver import images_of
    from cuda_emulation.with_pycuda import COMPILER

    from hloc.targets.cuda import compiler, kernel_images
    from hloc.targets.cuda.execution import measure
    monkeypatch.setattr(kernel_images, "images_of", images_of)
    monkeypatch.setattr(compiler, "compiler_version", lambda: COMPILER)
    (tile,) = (k for k in planned(PRODUCTS["bias and relu"][0]).kernels if isinstance(k, Tile))
    found = measure.measure(tile, H100)
    assert LIBRARY in found.microseconds and not found.refused

    def none():
        raise RunError("cuBLASLt is not here (libcublasLt)")
    monkeypatch.setattr(cublaslt, "library", none)
    assert measure.measure(tile, H100).refused == {LIBRARY: "cuBLASLt is not here (libcublasLt)"}
    assert np.isfinite(list(found.microseconds.values())).all()


def test_a_bias_at_a_computed_place():
    """An epilogue whose positions are computed has no name among the library's."""
    text = ("HloModule m\nENTRY e { a = f32[64,32] parameter(0)  b = f32[32,48] parameter(1)  c = f32[16] parameter(2)\n"
            "  d = f32[64,48] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
            "  x = f32[4,16,48] broadcast(c), dimensions={1}  y = f32[64,48] reshape(x)\n"
            "  ROOT s = f32[64,48] add(d, y) }\n")
    (tile,) = (k for k in planned(text).kernels if isinstance(k, Tile))
    assert tile.epilogue and library_products.library_product(tile) is None
