"""The command line, `python -m kvcore`: one module a command."""
