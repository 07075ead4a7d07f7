"""The command line as `python -m hloc`."""
from hloc.cli.main import main

main()
