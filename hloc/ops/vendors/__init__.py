"""Custom calls that compilers and libraries of others put in the place of operations, a file for each vocabulary:
cuBLAS, cuDNN, oneDNN and their like (library_calls.py), LAPACK and cuSOLVER, XLA's TPU compiler, TensorFlow, AWS
Neuron, Poplar.

A file is imported when a module has such a call: hloc/ops/known_calls.py is the table of all.
"""
