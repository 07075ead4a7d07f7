"""`hloc explore`: a local page on which a person sees HLO become kernels, C, CUDA C and machine code.

    server.py   what the browser asks: the page, the panes of a text, a file to share
    pool.py     one process for each question, ended with its time
    worker.py   that process: a copy of one that has imported the compiler
    work.py     a module and what the passes of each target make of it
    views/      a pane's content of each kind

What a module says is never run in the server, and reaches the page as JSON, which the page shows as text.
"""
