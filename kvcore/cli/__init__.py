"""The command line, `kvcore`: one module a command."""
