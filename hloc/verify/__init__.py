"""The rules of a module: of instructions (verifier.py), of several devices (devices.py), of buffers (buffers.py); what
is looked at though it breaks some (unverified.py)."""
from hloc.verify.verifier import verify, verify_all

__all__ = ["verify", "verify_all"]
