"""The tools behind the commands: comparison, reduction, profiles, graphs, and XLA as a second implementation."""
