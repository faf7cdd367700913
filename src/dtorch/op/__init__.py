"""The operator layer: what every operator is, with no operator in it."""
