"""The rules of a module: of instructions (verifier.py), of several devices (devices.py), of buffers (buffers.py);
and modules that break some (unverified.py)."""
from hloc.verify.verifier import verify, verify_all

__all__ = ["verify", "verify_all"]
