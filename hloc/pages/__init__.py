"""Pages for a browser: each is one file with its styles, scripts and data, and loads nothing."""
