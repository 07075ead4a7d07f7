"""The sections of benchmarks/gpu.py: each module's rows(device) gives dicts as it measures them.

    {"what": "softmax f32[8192,4096]", "value": 3.9e3, "unit": "GB/s", "compared": {"copy": 0.93}, "note": "..."}
    {"what": "...", "missing": "why it was not measured"}        {"wrong": True, ...}: a result was not right
"""
