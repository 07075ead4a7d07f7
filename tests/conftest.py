"""For all tests: a build cache of their own, and no thread pools that fight over the cores of a shared machine."""
import gc
import os
import sys

import pytest

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")


def pytest_configure(config):
    """One cache per run: what a test needs compiled, it compiles; workers of one run share it."""
    if "HLOC_CACHE_DIR" not in os.environ:
        import tempfile
        folder = tempfile.mkdtemp(prefix="hloc-tests-")
        os.environ["HLOC_CACHE_DIR"] = folder
        config.add_cleanup(lambda: _remove(folder))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What stays for the whole run, thousands of tests and modules, is not gone through by each collection of garbage;
    and there are fewer of these."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


@pytest.fixture(autouse=True)
def types_of_jax():
    """Each test starts with JAX as its users have it: without 64-bit types, which others of the process may have turned
    on for all."""
    config = getattr(sys.modules.get("jax"), "config", None)
    if config is not None and config.jax_enable_x64:
        config.update("jax_enable_x64", False)


@pytest.fixture
def hloc_run(capsys, monkeypatch):
    """A function: the exit code, stdout and stderr of `hloc ARGUMENTS`, in this process."""
    from hloc.cli.main import main

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hloc", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()
    return run


def pytest_terminal_summary(terminalreporter):
    """The counts as one plain line, for programs that read what a continuous integration run printed."""
    passed, failed, errors, skipped = (len(terminalreporter.getreports(kind))
                                       for kind in ("passed", "failed", "error", "skipped"))
    terminalreporter.write_line(f"{passed} passed, {failed + errors} failed, {skipped} skipped")


def _remove(folder: str) -> None:
    import shutil
    shutil.rmtree(folder, ignore_errors=True)
