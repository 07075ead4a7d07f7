"""python -m hloc.tools.conformance FOLDER"""
from hloc.tools.conformance.command import conformance

if __name__ == "__main__":
    conformance()
