"""Replaces itself by another program, which faults."""

import os
import sys

import fakecuda as cuda

cuda.launch("scale")
cuda.synchronize()
os.execv(sys.executable, [sys.executable, os.path.join(os.path.dirname(__file__), "two_lines.py")])
