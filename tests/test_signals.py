"""Signals: what runs ends soon, and nothing is left behind."""
from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import hloc
from hloc.errors import RunError
from hloc.targets.cuda import compiler
from hloc.workers import Workers

HLOC = (sys.executable, "-m", "hloc.cli.main")
SOON = 10.0                             # seconds: one, and what a machine with all cores taken adds
SINES = "".join(f"  a{n} = c64[1000] {'sine' if n % 2 else 'tanh'}(r{n - 1})\n"
                f"  r{n} = c64[1000] reverse(a{n}), dimensions={{0}}\n" for n in range(1, 80))
LONG_TO_COMPILE = f"ENTRY e {{\n  r0 = c64[1000] parameter(0)\n{SINES}  ROOT t = (c64[1000]) tuple(r79)\n}}\n"


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Ctrl-C as a terminal has it. A shell's background jobs ignore SIGINT, and what they start inherits that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def signalled(number: int, command: Sequence[str], folder: Path, ready: Callable[[], bool]) -> tuple[int, str]:
    """The exit code of a command that is sent a signal once it is ready, and what it said. It must end soon."""
    environment = {**os.environ, "TMPDIR": str(folder / "tmp"), "HLOC_CACHE_DIR": str(folder / "cache"),
                   "HLOC_PRECOMPILED": "0"}
    (folder / "tmp").mkdir()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
                               cwd=folder)
    try:
        end = time.monotonic() + 60
        while not ready():
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < end, "never ready"
            time.sleep(0.02)
        process.send_signal(number)
        _, said = process.communicate(timeout=SOON)
    finally:
        process.kill()
        process.communicate()
    return process.returncode, said


def programs_about(folder: Path) -> list[bytes]:
    """Command lines that name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:                                      # it has ended
            continue
    return [line for line in found if str(folder).encode() in line and b"cc1" in line]


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="no /proc that tells which programs run")
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_compilers_end_too(tmp_path, number, code) -> None:
    (tmp_path / "long.hlo").write_text(LONG_TO_COMPILE)
    command = [*HLOC, "compile", "long.hlo", "-t", "cpu", "-o", "long.so"]
    ended, said = signalled(number, command, tmp_path, lambda: bool(programs_about(tmp_path / "tmp")))
    assert ended == code and (said.strip() == "interrupted" if code == 130 else "Traceback" not in said), said
    end = time.monotonic() + SOON                            # they are killed; on a busy machine that takes a moment
    while programs_about(tmp_path / "tmp") and time.monotonic() < end:
        time.sleep(0.02)
    assert not programs_about(tmp_path / "tmp")
    assert not list((tmp_path / "tmp").iterdir())
    assert {p.name for p in tmp_path.iterdir()} == {"long.hlo", "tmp", "cache"}


@pytest.mark.skipif(compiler.nvrtc_version() is None, reason="NVRTC is not installed")
def test_nvrtc_is_left_to_itself(monkeypatch) -> None:
    """It cannot be stopped, so nobody waits for it."""
    source, ended, compiling = hloc.compile(LONG_TO_COMPILE, "h100", run=False).source, [], compiler._compile_with_nvrtc

    def begun(*arguments, **more) -> bytes:
        os.kill(os.getpid(), signal.SIGINT)
        image = compiling(*arguments, **more)
        ended.append(time.monotonic())
        return image
    monkeypatch.setattr(compiler, "_compile_with_nvrtc", begun)
    others = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        compiler.compile_cuda(source, "sm_90a", "cubin")
    interrupted_at = time.monotonic()
    for thread in set(threading.enumerate()) - others:
        thread.join()
    assert ended and interrupted_at < ended[0]


# -- runs --------------------------------------------------------------------------------------------------------------

LOOP = """HloModule loop
next { s = (s64[], f32[8]) parameter(0)  i = s64[] get-tuple-element(s), index=0  one = s64[] constant(1)
  j = s64[] add(i, one)  x = f32[8] get-tuple-element(s), index=1  y = f32[8] cosine(x)
  ROOT t = (s64[], f32[8]) tuple(j, y) }
goes_on { s = (s64[], f32[8]) parameter(0)  i = s64[] get-tuple-element(s), index=0  n = s64[] constant(1000000000000)
  ROOT c = pred[] compare(i, n), direction=LT }
ENTRY e { i = s64[] parameter(0)  x = f32[8] parameter(1)  t = (s64[], f32[8]) tuple(i, x)
  ROOT w = (s64[], f32[8]) while(t), condition=goes_on, body=next }
"""
SUM = """HloModule sum
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY e { x = f32[3] parameter(0)  i = f32[3,40000000000] iota(), iota_dimension=1  c = f32[3,40000000000] cosine(i)
  z = f32[] constant(0)  s = f32[3] reduce(c, z), dimensions={1}, to_apply=add  ROOT r = f32[3] add(s, x) }
"""
PRODUCT = """HloModule product
ENTRY e { x = f32[6000,6000] parameter(0)
  ROOT d = f32[6000,6000] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0} }
"""
SORT = """HloModule sort
less { a = f32[] parameter(0)  b = f32[] parameter(1)  c = f32[] cosine(a)  d = f32[] cosine(b)
  ROOT r = pred[] compare(c, d), direction=LT }
ENTRY e { n = s32[] parameter(0)  i = f32[60000000] iota(), iota_dimension=0
  ROOT s = f32[60000000] sort(i), dimensions={0}, is_stable=true, to_apply=less }
"""
EIGENVALUES = """HloModule eigenvalues
ENTRY e { x = f32[300,200,200] parameter(0)
  r = (f32[300,200], f32[300,200], c64[300,200,200], c64[300,200,200], s32[300]) custom-call(x),
    custom_call_target="lapack_sgeev_ffi", operand_layout_constraints={f32[300,200,200]{1,2,0}},
    api_version=API_VERSION_TYPED_FFI, backend_config={compute_left = 78 : ui8, compute_right = 78 : ui8}
  ROOT info = s32[300] get-tuple-element(r), index=4 }
"""
LAST = np.int64(10**12 - 3)


@contextmanager
def interrupted(number: int = signal.SIGINT, seconds: float = 0.3) -> Iterator[None]:
    """Sends this process a signal in a while. What it interrupts must end soon."""
    sent: list[float] = []
    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), number)
    timer = threading.Timer(seconds, send)
    timer.start()
    try:
        yield
    finally:
        timer.join()
        assert time.monotonic() - sent[0] < SOON


@pytest.mark.parametrize("text, arguments", [
    (LOOP, (np.int64(0), np.zeros(8, np.float32))), (SUM, (np.zeros(3, np.float32),)),
    (PRODUCT, (np.zeros((6000, 6000), np.float32),)), (SORT, (np.int32(0),))], ids=["loop", "sum", "product", "sort"])
def test_runs_end(text, arguments) -> None:
    exe = hloc.compile(text, "cpu")
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupted():
        exe(*arguments)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_batch_in_lapack_ends() -> None:
    """Between two of its matrices: all 300 take some 20 seconds."""
    pytest.importorskip("scipy", reason="SciPy, which offers LAPACK, is not installed")
    exe = hloc.compile(EIGENVALUES, "cpu")
    matrices = np.random.default_rng(0).standard_normal((300, 200, 200)).astype(np.float32)
    with pytest.raises(KeyboardInterrupt), interrupted():
        exe(matrices)


def test_a_program_is_usable_after_it_was_interrupted() -> None:
    exe, x = hloc.compile(LOOP, "cpu"), np.arange(8, dtype=np.float32)
    wanted = exe(LAST, x)[1].copy()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), interrupted():
            exe(np.int64(0), x)
        count, last = exe(LAST, x)
        assert count == 10**12 and (last == wanted).all()


def test_a_function_of_the_application_decides() -> None:
    """One that raises nothing lets the run go on; one that raises ends it with what it raised."""
    exe, x, calls = hloc.compile(LOOP, "cpu"), np.arange(8, dtype=np.float32), []
    class Enough(Exception):
        pass
    def count(number: int, frame: object) -> None:
        calls.append(number)
        if len(calls) == 3:
            raise Enough
    before = signal.signal(signal.SIGTERM, count)
    try:
        timers = [threading.Timer(0.2 * n, os.kill, (os.getpid(), signal.SIGTERM)) for n in (1, 2, 3)]
        for timer in timers:
            timer.start()
        with pytest.raises(Enough):
            exe(np.int64(0), x)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert calls == [signal.SIGTERM] * 3


def test_runs_of_other_threads_go_on() -> None:
    exe, x, got = hloc.compile(LOOP, "cpu"), np.arange(8, dtype=np.float32), []
    other = threading.Thread(target=lambda: got.append(exe(np.int64(10**12 - 30_000_000), x)[0]))
    other.start()
    with pytest.raises(KeyboardInterrupt), interrupted(seconds=0.2):
        exe(np.int64(0), x)                                   # it waits for its turn, at first
    other.join()
    assert got == [10**12]


def test_two_threads_call_one_program() -> None:
    exe = hloc.compile("ENTRY e { x = f32[5000] parameter(0)  ROOT y = f32[5000] multiply(x, x) }\n", "cpu")
    wrong: list[int] = []
    def calls(value: int) -> None:
        for n in range(2000):
            if not (exe(np.full(5000, value + n % 7, np.float32))[0] == np.float32((value + n % 7) ** 2)).all():
                wrong.append(value)
    threads = [threading.Thread(target=calls, args=(v,)) for v in (2, 30, 500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_custom_call_that_calls_its_own_program() -> None:
    text = 'ENTRY e { x = f32[4] parameter(0)  ROOT y = f32[4] custom-call(x), custom_call_target="again" }\n'
    def again(x: np.ndarray) -> np.ndarray:
        return exe(x)[0] if x[0] < 3 else x
    exe = hloc.compile(text, "cpu", options=hloc.Options(custom_calls={"again": again}))
    with pytest.raises(RunError, match="calls that same program"):
        exe(np.zeros(4, np.float32))
    assert exe(np.full(4, 5, np.float32))[0].tolist() == [5] * 4


def test_a_custom_call_is_interrupted() -> None:
    text = 'ENTRY e { x = f32[4] parameter(0)  ROOT y = f32[4] custom-call(x), custom_call_target="sleeps" }\n'
    def sleeps(x: np.ndarray) -> np.ndarray:
        time.sleep(float(x[0]))
        return x
    exe = hloc.compile(text, "cpu", options=hloc.Options(custom_calls={"sleeps": sleeps}))
    with pytest.raises(KeyboardInterrupt), interrupted():
        exe(np.full(4, 30, np.float32))
    assert exe(np.zeros(4, np.float32))[0].tolist() == [0] * 4


def test_hloc_run_ends(tmp_path) -> None:
    (tmp_path / "loop.hlo").write_text(LOOP)
    for target in ("cpu", "reference"):
        folder = tmp_path / target
        folder.mkdir()
        started = folder / "started"
        call = (f"import hloc.executable as e, pathlib; c = e.Executable.__call__\n"
                f"def f(*a):\n    pathlib.Path({str(started)!r}).touch(); return c(*a)\n"
                "e.Executable.__call__ = f\nfrom hloc.cli.main import main; main()")
        command = [sys.executable, "-c", call, "run", "../loop.hlo", "-t", target, "-i", "zeros", "-o", "r.npz"]
        code, said = signalled(signal.SIGINT, command, folder, started.exists)
        assert code == 130 and said.strip().endswith("interrupted") and "Traceback" not in said
        assert {p.name for p in folder.iterdir()} <= {"tmp", "cache", "started"} and not any((folder / "tmp").iterdir())


# -- processes ---------------------------------------------------------------------------------------------------------

def in_child(work: Callable[[], bool]) -> None:
    """`work` is true in a forked process, which ends soon."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os._exit(0 if work() else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_process_calls_what_another_thread_runs() -> None:
    loop, x = hloc.compile(LOOP, "cpu"), np.arange(8, dtype=np.float32)
    product = hloc.compile("ENTRY e { x = f32[700,700] parameter(0)  ROOT d = f32[700,700] dot(x, x), "
                           "lhs_contracting_dims={1}, rhs_contracting_dims={0} }\n", "cpu")
    ones, wanted, ends = np.ones((700, 700), np.float32), loop(LAST, x)[1].copy(), threading.Event()
    def runs() -> None:
        while not ends.is_set():
            product(ones)
            loop(np.int64(10**12 - 3_000_000), x)
    other = threading.Thread(target=runs)
    other.start()
    try:
        for _ in range(10):
            time.sleep(0.02)
            in_child(lambda: bool((product(ones)[0] == 700).all() and (loop(LAST, x)[1] == wanted).all()
                                  and (product(ones)[0] == 700).all()))
    finally:
        ends.set()
        other.join()
    assert (product(ones)[0] == 700).all()


def squares(values: list[float]) -> list[float]:
    """What a worker process computes."""
    exe = hloc.compile("ENTRY e { x = f32[4] parameter(0)  ROOT y = f32[4] multiply(x, x) }\n", "cpu")
    return exe(np.array(values, np.float32))[0].tolist()


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_worker_processes(method) -> None:
    assert squares([1, 2, 3, 4]) == [1, 4, 9, 16]
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map_async(squares, [[0, 1, 2, 3], [5, 5, 5, 5]]).get(timeout=120) == [[0, 1, 4, 9], [25] * 4]


def test_a_thread_is_joined_though_a_signal_came_while_it_started(monkeypatch) -> None:
    running, ended, start = threading.Event(), [], threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        assert running.wait(SOON)
        raise KeyboardInterrupt                              # the pool has not noted the thread

    def job() -> None:
        running.set()
        time.sleep(0.2)
        ended.append(True)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), Workers(1) as workers:
        workers.submit(job)
    assert ended


FINALIZER = """
import os, signal, time
from hloc import interrupts
interrupts.UNWINDING_SECONDS = 0.1

class Ended:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

with interrupts.ending_cleanly():
    Ended()
    time.sleep(0.2)
    print("lost", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    print("not ended")
"""


def test_a_signal_that_met_a_finalizer_may_be_sent_again() -> None:
    done = subprocess.run([sys.executable, "-c", FINALIZER], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGTERM and done.stdout == "lost\n", done.stderr
