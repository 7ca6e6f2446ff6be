//! The walker in real interpreters.
fn main() {}
