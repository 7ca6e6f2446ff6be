//! Every parser on any bytes: no panic, the same result however the reader cuts them, spans inside the stream.

#![no_main]

use std::io::BufReader;

use faultlab::parse::{PyException, Span, scan, scan_bytes, torch};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let found = scan_bytes(bytes);
    let small = scan(BufReader::with_capacity(3, bytes)).expect("reading from memory");
    assert_eq!(found, small);

    let whole = Span { start: 0, end: bytes.len() as u64 };
    assert_eq!(found.bytes, whole.end);
    for traceback in found.tracebacks.iter() {
        assert!(whole.contains(traceback.span));
        for exception in &traceback.chain {
            check(exception, traceback.span);
        }
    }
    for span in found
        .errors
        .iter()
        .map(|item| item.span)
        .chain(found.native_stacks.iter().map(|item| item.span))
        .chain(found.forward_traces.iter().map(|item| item.span))
        .chain(found.fatal_errors.iter().map(|item| item.span))
        .chain(found.dsa_failures.iter().map(|item| item.span))
        .chain(found.terminations.iter().map(|item| item.span))
        .chain(found.assertions.iter().map(|item| item.span))
    {
        assert!(whole.contains(span) && span.start <= span.end);
    }
    if let Some(error) = torch::error_in(&String::from_utf8_lossy(bytes)) {
        assert!(error.span.start <= error.span.end);
    }
});

fn check(exception: &PyException, outer: Span) {
    assert!(outer.contains(exception.span));
    let _ = exception.origin();
    for inner in exception.children.iter().flatten().chain(&exception.embedded) {
        check(inner, outer);
    }
}
