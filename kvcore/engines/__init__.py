"""Serving engines: how each lays memories out, what pool it makes, what it logs, and the flags that ask for it."""
