"""Measurements: our numbers beside published ones, and our speed beside other tools'."""
