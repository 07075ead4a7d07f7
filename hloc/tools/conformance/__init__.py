"""Does hloc read, print, check and run a folder of modules as XLA does?

    python -m hloc.tools.conformance FOLDER --json report.json

In: a folder of HLO texts, maybe with an index.jsonl of verdicts (see cases.py). Out: counts per check, classes of what
differs, most frequent first, and a JSON file with a record per module. XLA itself (the `jax` extra) is the judge; where
it is missing, only what needs no judge is checked.

    cases.py     the modules of a folder
    process.py   worker processes that may be killed: XLA aborts on some texts, and a hang or a crash is a finding
    subject.py   what hloc does with a module, in a worker      judge.py   what XLA does with it, in another worker
    arrays.py    inputs and results on their way between processes
    verdicts.py  the two put side by side                       report.py  counts, the table, the JSON file
    runner.py    all of it, several modules at a time
"""
