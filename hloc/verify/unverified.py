"""Modules that are looked at though they break rules: older frontends wrote such text, and XLA's parser reads it.

    module.faults = faults_of(module)                    what verify() would have raised, to be told as warnings
    with blaming_faults(module, "pass fusion"): ...      what then goes wrong inside is one error, at the first fault

The structure must be in order all the same: names, operands before their users, callees before their callers. XLA's
parser, too, reads nothing else, and every walk over a module depends on it.
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
    """The first rules that a module breaks. Raises VerifyError where the structure is broken."""
    for error in structure_errors(module):
        raise error
    return tuple(islice(rule_errors(module), MOST_FAULTS))


@contextmanager
def blaming_faults(module: Module, what: str) -> Iterator[None]:
    """Nothing is promised for a module with faults: an exception inside that has no place in the text is a VerifyError
    that names `what` and the first fault. Without faults it goes on as it is: then it is hloc's."""
    try:
        yield
    except Exception as error:
        told = isinstance(error, HlocError) and (error.span or not isinstance(error, (VerifyError, UnsupportedError)))
        if told or not module.faults:
            raise
        fault = module.faults[0]
        raise VerifyError(f"{what} cannot handle this module, which breaks a rule: {fault.message}", fault.span,
                          fault.hint) from error
