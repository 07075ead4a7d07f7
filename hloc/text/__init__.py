"""HLO text: the grammar's trees to modules."""
from hloc.text.parser import parse_instruction, parse_module, parse_modules, parse_shape

__all__ = ["parse_instruction", "parse_module", "parse_modules", "parse_shape"]
