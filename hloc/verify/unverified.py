"""Modules that break rules and are read nevertheless: older frontends wrote such text, and XLA's parser reads it.

    module.faults = faults_of(module)                    the errors of verify(), for warnings
    with blaming_faults(module, "pass fusion"): ...      an exception inside becomes one error, at the first fault

The structure must be correct: names, operands before their users, callees before their callers. XLA's parser refuses
other modules, too, and every walk over a module depends on it.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from hloc.errors import HlocError, UnsupportedError, VerifyError
from hloc.ir import Module
from hloc.verify.verifier import rule_errors, structure_errors

MOST_FAULTS = 1000


def faults_of(module: Module) -> tuple[VerifyError, ...]:
    """The first rules that a module breaks. Raises VerifyError if the structure is broken."""
    for error in structure_errors(module):
        raise error
    return tuple(islice(rule_errors(module), MOST_FAULTS))


@contextmanager
def blaming_faults(module: Module, what: str) -> Iterator[None]:
    """For a module with faults, turn an exception without a place in the text into a VerifyError that names `what` and
    the first fault. Without faults the exception is an internal error of hloc and is not changed."""
    try:
        yield
    except Exception as error:
        told = isinstance(error, HlocError) and (error.span or not isinstance(error, (VerifyError, UnsupportedError)))
        if told or not module.faults:
            raise
        fault = module.faults[0]
        raise VerifyError(f"{what} cannot handle this module, which breaks a rule: {fault.message}", fault.span,
                          fault.hint) from error
