"""What one GPU of a deployment holds: its part of the memories and of the weights, whatever the engine."""
