"""Faults that users of distributed tensors have met, each as a small input; one file a section.

The list on top of each file leads from a fault to the tests that would show it, here or elsewhere.
"""
