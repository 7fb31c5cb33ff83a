"""The same model remembering differently: variants, the ladder of designs, A against B, levers, the trend."""
