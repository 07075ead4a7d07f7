"""What the command line offers beyond compiling and running: comparison, XLA as a second opinion."""
