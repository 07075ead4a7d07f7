"""The inputs of a run: arrays that fit the entry's parameters (arrays.py), from files (files.py), or generated to suit
the use of each parameter (sensible.py)."""
from hloc.inputs.arrays import (
    Named,
    Parameter,
    check_array,
    check_arrays,
    check_inputs,
    entry_parameters,
    entry_results,
    host_arrays,
    random_arrays,
    within_bounds,
    zero_arrays,
)

__all__ = ["Named", "Parameter", "check_array", "check_arrays", "check_inputs", "entry_parameters", "entry_results",
           "host_arrays", "random_arrays", "within_bounds", "zero_arrays"]
