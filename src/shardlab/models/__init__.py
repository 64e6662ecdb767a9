"""Cost models in pure Python: standard library only, no input or output.

The same files run under CPython and, in the reader's browser, under MicroPython.
"""
