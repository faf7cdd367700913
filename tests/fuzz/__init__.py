"""Random programs on distributed tensors, line by line the same as on plain ones."""
