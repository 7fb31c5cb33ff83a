"""Where a model comes from: the catalogue, files, the Hub. The only code that fetches."""
