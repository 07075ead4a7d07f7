"""Memory-bound kernels: bytes that must move per second, as a fraction of what a copy on the device reaches."""
from __future__ import annotations

from gpu_sections.device import bytes_of
from hloc.targets.cuda.execution.context import primary_context

ADD = "add {{ a = {t}[] parameter(0)  b = {t}[] parameter(1)  ROOT r = {t}[] add(a, b) }}\n"
MAX = "max {{ a = {t}[] parameter(0)  b = {t}[] parameter(1)  ROOT r = {t}[] maximum(a, b) }}\n"

# name -> (fraction of the copy to reach, HLO; r rows, c columns, t element type)
MODULES: dict[str, tuple[float, str]] = {
    "add": (0.9, "ENTRY e {{ x = {t}[{r},{c}] parameter(0)  y = {t}[{r},{c}] parameter(1)\n"
                 "  ROOT z = {t}[{r},{c}] add(x, y) }}\n"),
    "tanh(x) * x": (0.9, "ENTRY e {{ x = {t}[{r},{c}] parameter(0)  y = {t}[{r},{c}] tanh(x)\n"
                         "  ROOT z = {t}[{r},{c}] multiply(x, y) }}\n"),
    "sum of rows": (0.9, ADD + "ENTRY e {{ x = {t}[{r},{c}] parameter(0)  z = {t}[] constant(0)\n"
                               "  ROOT s = {t}[{r}] reduce(x, z), dimensions={{1}}, to_apply=add }}\n"),
    "sum of columns": (0.9, ADD + "ENTRY e {{ x = {t}[{r},{c}] parameter(0)  z = {t}[] constant(0)\n"
                                  "  ROOT s = {t}[{c}] reduce(x, z), dimensions={{0}}, to_apply=add }}\n"),
    "sum of all": (0.9, ADD + "ENTRY e {{ x = {t}[{r},{c}] parameter(0)  z = {t}[] constant(0)\n"
                              "  ROOT s = {t}[] reduce(x, z), dimensions={{0,1}}, to_apply=add }}\n"),
    "transpose": (0.85, "ENTRY e {{ x = {t}[{r},{c}] parameter(0)\n"
                        "  ROOT y = {t}[{c},{r}] transpose(x), dimensions={{1,0}} }}\n"),
    "softmax": (0.9, ADD + MAX + """ENTRY e {{ x = {t}[{r},{c}] parameter(0)  low = {t}[] constant(-inf)
  m = {t}[{r}] reduce(x, low), dimensions={{1}}, to_apply=max
  mb = {t}[{r},{c}] broadcast(m), dimensions={{0}}  d = {t}[{r},{c}] subtract(x, mb)  e = {t}[{r},{c}] exponential(d)
  z = {t}[] constant(0)  s = {t}[{r}] reduce(e, z), dimensions={{1}}, to_apply=add
  sb = {t}[{r},{c}] broadcast(s), dimensions={{0}}  ROOT q = {t}[{r},{c}] divide(e, sb) }}
"""),
    "layer norm": (0.9, ADD + """ENTRY e {{ x = {t}[{r},{c}] parameter(0)  z = {t}[] constant(0)
  n = {t}[] constant({c})  nb = {t}[{r}] broadcast(n), dimensions={{}}
  s = {t}[{r}] reduce(x, z), dimensions={{1}}, to_apply=add  mean = {t}[{r}] divide(s, nb)
  mb = {t}[{r},{c}] broadcast(mean), dimensions={{0}}  d = {t}[{r},{c}] subtract(x, mb)
  dd = {t}[{r},{c}] multiply(d, d)  v = {t}[{r}] reduce(dd, z), dimensions={{1}}, to_apply=add
  var = {t}[{r}] divide(v, nb)  tiny = {t}[] constant(0.00001)  tb = {t}[{r}] broadcast(tiny), dimensions={{}}
  ve = {t}[{r}] add(var, tb)  w = {t}[{r}] rsqrt(ve)  wb = {t}[{r},{c}] broadcast(w), dimensions={{0}}
  ROOT o = {t}[{r},{c}] multiply(d, wb) }}
"""),
}
# n rows by a matrix of bytes with a scale for each column, which is computed on its way into the product
WEIGHTS = """HloModule m
ENTRY e {{ x = bf16[{n},{k}] parameter(0)  w = s8[{c},{k}] parameter(1)  s = bf16[{c}] parameter(2)
  v = bf16[{c},{k}] convert(w)  t = bf16[{c},{k}] broadcast(s), dimensions={{0}}  m = bf16[{c},{k}] multiply(v, t)
  ROOT d = bf16[{n},{c}] dot(x, m), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}} }}
"""


def copy_bandwidth(device) -> float:
    """Bytes per second that a copy on the device reads and writes."""
    size = device.size(1 << 30, 1 << 16)
    context = primary_context(device.cuda)
    context.push()
    try:
        here, there = device.cuda.mem_alloc(size), device.cuda.mem_alloc(size)
        stream = device.cuda.Stream(1)
        seconds = device.median(lambda: device.cuda.memcpy_dtod_async(int(there), int(here), size, stream), stream,
                                context)
        here.free()
        there.free()
    finally:
        context.pop()
    return 2 * size / seconds


def weights(device, best: float):
    """Products of few rows, which take as long as reading the weights does."""
    depth, columns = device.size(4096, 96), device.size(16384, 72)
    for count in (1, 16):
        backend = device.program(WEIGHTS.format(n=count, k=depth, c=columns))
        rate = bytes_of(backend) / device.seconds(backend)
        yield {"what": f"bf16[{count},{depth}] by s8[{columns},{depth}] with scales", "value": rate / 1e9,
               "unit": "GB/s", "compared": {"the copy": rate / best}}
        backend.close()


def rows(device):
    best = copy_bandwidth(device)
    yield {"what": "a copy on the device", "value": best / 1e9, "unit": "GB/s",
           "compared": {"the data sheet": best / device.machine.bandwidth}}
    rows_, columns = device.size(16384, 12), device.size(4096, 40)
    for type in ("f32", "bf16"):
        for name, (wanted, text) in MODULES.items():
            backend = device.program(f"HloModule m\n{text}".format(t=type, r=rows_, c=columns))
            rate = bytes_of(backend) / device.seconds(backend)
            kernels = len(backend.packed.steps)
            yield {"what": f"{name} {type}[{rows_},{columns}]", "value": rate / 1e9, "unit": "GB/s",
                   "compared": {"the copy": rate / best},
                   "note": f"to reach: {wanted:.2f}{'' if rate >= wanted * best else ', not reached'}"
                           f"{f'; {kernels} kernels' if kernels > 1 else ''}"}
            backend.close()
    yield from weights(device, best)
