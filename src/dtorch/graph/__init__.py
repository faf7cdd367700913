"""Recording what a program does, and deciding how each operator runs."""
