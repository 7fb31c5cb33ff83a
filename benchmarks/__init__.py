"""How fast the answers are, beside public planners measured in the same run."""
