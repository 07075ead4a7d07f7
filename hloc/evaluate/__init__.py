"""The reference evaluator in NumPy (evaluator.py), on one device or on several (simulate.py, mpi.py).

lookahead.py and elementwise_groups.py make it faster with the same results.
"""
from hloc.evaluate.evaluator import (
    FIRST_RANDOM_STATE,
    CustomCall,
    Device,
    Evaluator,
    Options,
    Plan,
    evaluate,
    make_plan,
    make_scalar_plan,
)

__all__ = ["FIRST_RANDOM_STATE", "CustomCall", "Device", "Evaluator", "Options", "Plan", "evaluate", "make_plan",
           "make_scalar_plan"]
