"""Planning: how a model's memories are split over accelerators, and how many requests fit beside its weights."""
