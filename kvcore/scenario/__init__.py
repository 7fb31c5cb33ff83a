"""Everything that a user can choose, declared once: field, reader, address, command line."""
