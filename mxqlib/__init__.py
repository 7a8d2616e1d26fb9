"""MXQ: batch jobs without a resident scheduler."""

__version__ = "0.1.0"
