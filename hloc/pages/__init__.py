"""Pages for a browser: each is one file, with its styles, scripts and data inside, that asks no server for anything."""
