"""Passes for rare ops: the file of such a pass is imported when a module has one of these ops.

    cholesky_expander = LazyPass("cholesky_expander", "cholesky")
    cholesky_expander(module, context)          False, and nothing imported, for a module without a cholesky

One that is named without opcodes runs on any module.

This saves a third of a compilation's imports, and walks that would find nothing.
"""
from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from hloc.ir import Module
from hloc.passes.context import PassContext


class LazyPass:
    # Called like the pass `name` of the file of the same name, which has nothing to do without one of the opcodes. It
    # also has that pass's docstring.
    __doc__ = property(lambda self: self.function.__doc__)

    def __init__(self, name: str, *opcodes: str):
        self.__name__, self.opcodes = name, frozenset(opcodes)

    def __call__(self, module: Module, context: PassContext) -> bool:
        if self.opcodes and self.opcodes.isdisjoint([i.opcode for c in module.computations for i in c.instructions]):
            return False
        return self.function(module, context)

    @property
    def function(self) -> Callable[[Module, PassContext], bool]:
        """The pass itself."""
        return getattr(import_module(f"hloc.passes.{self.__name__}"), self.__name__)
