//! Frames of the calling thread, read from CPython's memory without the GIL.
