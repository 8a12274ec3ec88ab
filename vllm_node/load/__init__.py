"""The measuring engine: sends requests on a schedule, times the streams, and proves that it kept up.

It runs on a node with nothing but the Python of the vLLM image, from a copy of this folder alone. So it imports the
standard library only, and httptools and uvloop where they are installed.
"""
