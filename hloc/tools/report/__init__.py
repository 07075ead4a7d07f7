"""The content of `hloc report`: gathered here, shown by hloc/pages/report_page.py.

    told = make_report(module, find("h100"))      a Report; measured(told, profile) adds what a run took
"""
from hloc.tools.report.kernels import KernelReport
from hloc.tools.report.report import Report, make_report, measured

__all__ = ["KernelReport", "Report", "make_report", "measured"]
