"""Measuring engines: time, memory, accuracy, and how far they are from what the machine can do."""
