"""The loop IR as text: printed, read back, and run by an interpreter that checks the kernel passes."""
from hloc.kernels.text.printer import print_loops, statement_lines
from hloc.kernels.text.reader import read_loops

__all__ = ["print_loops", "read_loops", "statement_lines"]
