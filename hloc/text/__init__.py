"""HLO text to modules, by the grammar's parse trees."""
from hloc.text.parser import parse_instruction, parse_module, parse_modules, parse_shape

__all__ = ["parse_instruction", "parse_module", "parse_modules", "parse_shape"]
