//! The text parsers on recorded output: one snapshot a fixture, and properties that hold for any bytes.
//!
//! `parsers/make.py` made the fixtures named `*.py311.txt` and `*.py313.txt` with real interpreters; those without such a
//! tag follow the shape of public reports, as this machine has no GPU to produce them.

use std::fmt::{self, Write as _};
use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use faultlab::parse::{
    Bounded, DeviceAssertion, Frame, NativeStack, PyException, Relation, Scan, Site, Span, Traceback, scan, scan_bytes,
    torch,
};
use proptest::prelude::*;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parsers")
}

/// All fixtures by name, sorted.
fn fixtures() -> Vec<(String, Vec<u8>)> {
    let mut found: Vec<(String, Vec<u8>)> = fs::read_dir(folder())
        .expect("the fixtures' folder")
        .filter_map(|entry| {
            let path = entry.expect("a fixture").path();
            let name = path.file_name()?.to_str()?.strip_suffix(".txt")?.to_owned();
            Some((name, fs::read(&path).expect("a fixture")))
        })
        .collect();
    found.sort();
    found
}

/// Scans one fixture, compares with its snapshot, and holds it to everything that must be true of any input.
fn check(name: &str, bytes: &[u8]) {
    let found = scan_bytes(bytes);
    let text = String::from_utf8_lossy(bytes);
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(folder().join("snapshots"));
    settings.set_prepend_module_to_snapshot(false);
    settings.bind(|| insta::assert_snapshot!(name, render(&found).expect("writing to a string")));

    assert_sound(&found, bytes.len() as u64);
    for capacity in [1, 7, 4096] {
        assert_eq!(
            scan(BufReader::with_capacity(capacity, bytes)).expect("a slice"),
            found,
            "{name} read by {capacity}"
        );
    }
    let windows = text.replace('\n', "\r\n");
    assert_eq!(render(&scan_bytes(windows.as_bytes())), render(&found), "{name} with CRLF");
    let coloured = text.replace(": ", ":\x1b[0m \x1b[1;35m");
    if !text.contains('\x1b') {
        assert_eq!(render(&scan_bytes(coloured.as_bytes())), render(&found), "{name} with colours");
    }
}

#[test]
fn fixtures_are_read_as_their_snapshots_say() {
    let fixtures = fixtures();
    assert!(fixtures.len() > 60, "only {} fixtures", fixtures.len());
    for (name, bytes) in fixtures {
        check(&name, &bytes);
    }
}

// --------------------------------------------------------------------------------------------- what the snapshots show

fn render(found: &Scan) -> Result<String, fmt::Error> {
    let mut out = String::new();
    for traceback in found.tracebacks.iter() {
        let Traceback { process, heading, interleaved, complete, omitted_exceptions, .. } = traceback;
        write!(out, "traceback")?;
        process.iter().try_for_each(|process| write!(out, " of {process}"))?;
        heading.iter().try_for_each(|heading| write!(out, " under {heading:?}"))?;
        write!(out, "{}", if *interleaved { " interleaved" } else { "" })?;
        writeln!(out, "{}", if *complete { "" } else { " incomplete" })?;
        if *omitted_exceptions > 0 {
            writeln!(out, "  … {omitted_exceptions} exceptions omitted")?;
        }
        traceback.chain.iter().try_for_each(|exception| render_exception(&mut out, exception, 1))?;
    }
    for trace in found.forward_traces.iter() {
        writeln!(out, "forward call of {}{}", trace.node, if trace.induced { " (induced)" } else { "" })?;
        trace.frames.iter().try_for_each(|frame| render_frame(&mut out, frame, 1))?;
    }
    for fatal in found.fatal_errors.iter() {
        writeln!(out, "fatal: {:?}", fatal.reason)?;
        for thread in &fatal.threads {
            writeln!(out, "  thread {}{}", thread.id, if thread.current { " (current)" } else { "" })?;
            thread.frames.iter().try_for_each(|frame| render_frame(&mut out, frame, 2))?;
        }
    }
    found.assertions.iter().try_for_each(|assertion| render_assertion(&mut out, assertion))?;
    for failure in found.dsa_failures.iter() {
        writeln!(out, "c10 assertion report: {:?}", (failure.gpu, failure.index, &failure.message, &failure.function))?;
        writeln!(out, "  at {}:{} {:?}\n  {:?}", failure.file, failure.line, failure.site, failure.launch)?;
    }
    for error in found.errors.iter() {
        writeln!(out, "error: {:?} {:?} name {:?} call {:?}", error.kind, error.text, error.name, error.call)?;
        let notes = [
            ("async", error.async_note),
            ("blocking-hint", error.blocking_hint),
            ("dsa", error.dsa_note),
            ("log-file", error.log_file_note),
        ];
        let notes: Vec<&str> = notes.iter().filter(|(_, there)| *there).map(|(note, _)| *note).collect();
        writeln!(out, "  notes {notes:?} blocking {:?} process {:?}", error.launch_blocking(), error.process)?;
    }
    found.native_stacks.iter().try_for_each(|stack| render_stack(&mut out, stack))?;
    for end in found.terminations.iter() {
        writeln!(out, "terminate: {:?} {:?}", end.type_name, end.what)?;
    }
    Ok(out)
}

fn render_exception(out: &mut String, exception: &PyException, depth: usize) -> fmt::Result {
    let pad = "  ".repeat(depth);
    let relation = match exception.relation {
        Relation::First => "",
        Relation::DirectCause => "caused: ",
        Relation::DuringHandling => "handling it: ",
    };
    writeln!(out, "{pad}{relation}{} {:?}", exception.type_name, exception.message)?;
    exception.frames.iter().try_for_each(|frame| render_frame(out, frame, depth + 1))?;
    if exception.omitted_frames + exception.omitted_children > 0 {
        writeln!(out, "{pad}  … {} frames, {} members omitted", exception.omitted_frames, exception.omitted_children)?;
    }
    for embedded in &exception.embedded {
        writeln!(out, "{pad}  in the message:")?;
        render_exception(out, embedded, depth + 2)?;
    }
    for (number, child) in exception.children.iter().enumerate() {
        writeln!(out, "{pad}  member {}:", number + 1)?;
        child.iter().try_for_each(|exception| render_exception(out, exception, depth + 2))?;
    }
    Ok(())
}

fn render_frame(out: &mut String, frame: &Frame, depth: usize) -> fmt::Result {
    write!(out, "{}{}:{} {}", "  ".repeat(depth), frame.file, frame.line, frame.function)?;
    frame.source.iter().try_for_each(|source| write!(out, " | {source:?}"))?;
    frame.mark.iter().try_for_each(|(start, end)| write!(out, " [{start}..{end}]"))?;
    if frame.repeated > 0 {
        write!(out, " and {} more times", frame.repeated)?;
    }
    writeln!(out)
}

fn render_assertion(out: &mut String, assertion: &DeviceAssertion) -> fmt::Result {
    let DeviceAssertion { file, line, function, expression, count, process, .. } = assertion;
    writeln!(out, "assertion `{expression}` at {file}:{line} of {process:?}\n  in {function:?}")?;
    let Site { block, thread } = assertion.first;
    writeln!(out, "  {count} times, first block {block:?} thread {thread:?}")?;
    let (Site { block: b, thread: t }, Site { block, thread }) = (assertion.min, assertion.max);
    writeln!(out, "  blocks {b:?} to {block:?}, threads {t:?} to {thread:?}, {} samples", assertion.samples.len())
}

fn render_stack(out: &mut String, stack: &NativeStack) -> fmt::Result {
    writeln!(out, "C++ stack")?;
    if let Some(raised) = &stack.raised_from {
        writeln!(out, "  raised from {} at {}:{}", raised.function, raised.source.file, raised.source.line)?;
    }
    for frame in &stack.frames {
        write!(out, "  #{} {:?} + {:x?} at {:x?}", frame.index, frame.symbol, frame.offset, frame.address)?;
        writeln!(out, " of {:?}, {:?}", frame.module, frame.source)?;
    }
    Ok(())
}

// ------------------------------------------------------------------------------------------------ true of any input

/// Spans lie in the stream, items are in order, and what is inside an item lies inside its span.
fn assert_sound(found: &Scan, length: u64) {
    assert_eq!(found.bytes, length);
    let whole = Span { start: 0, end: length };
    let inside = |span: Span, outer: Span| {
        assert!(span.start <= span.end && outer.contains(span), "{span:?} in {outer:?}");
    };
    ordered(&found.tracebacks, |item| item.span, whole);
    ordered(&found.forward_traces, |item| item.span, whole);
    ordered(&found.fatal_errors, |item| item.span, whole);
    ordered(&found.dsa_failures, |item| item.span, whole);
    ordered(&found.errors, |item| item.span, whole);
    ordered(&found.native_stacks, |item| item.span, whole);
    ordered(&found.terminations, |item| item.span, whole);
    for assertion in &found.assertions {
        inside(assertion.span, whole);
        assert!(assertion.count >= assertion.samples.len() as u64 && !assertion.samples.is_empty());
    }
    for traceback in found.tracebacks.iter() {
        for exception in &traceback.chain {
            sound_exception(exception, traceback.span);
        }
    }
}

fn ordered<T>(items: &Bounded<T>, span: impl Fn(&T) -> Span, whole: Span) {
    let spans: Vec<Span> = items.iter().map(span).collect();
    assert!(spans.iter().all(|span| span.start <= span.end && whole.contains(*span)), "{spans:?} in {whole:?}");
    assert!(spans.is_sorted_by_key(|span| span.start), "{spans:?}");
    assert!(items.len() <= 2 * Bounded::<T>::KEPT);
}

fn sound_exception(exception: &PyException, outer: Span) {
    assert!(outer.contains(exception.span), "{:?} in {outer:?}", exception.span);
    assert!(exception.message.len() < 3 * 16 * 1024 + 100);
    assert!(exception.frames.len() <= PyException::FIRST_FRAMES + PyException::LAST_FRAMES);
    for frame in &exception.frames {
        assert!(exception.span.contains(frame.span), "{:?} in {:?}", frame.span, exception.span);
    }
    for inner in exception.children.iter().flatten().chain(&exception.embedded) {
        sound_exception(inner, outer);
    }
}

/// Any text, but made of what the recognisers look for, so that it reaches deep states.
fn soup() -> impl Strategy<Value = Vec<u8>> {
    let pieces: Vec<Vec<u8>> = fixtures()
        .into_iter()
        .flat_map(|(_, bytes)| bytes.split_inclusive(|b| *b == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>())
        .collect();
    proptest::collection::vec(prop_oneof![8 => proptest::sample::select(pieces), 1 => any::<Vec<u8>>()], 0..60)
        .prop_map(|lines| lines.concat())
}

fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let texts: Vec<Vec<u8>> = fixtures().into_iter().map(|(_, bytes)| bytes).collect();
    let edits = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0_u8..3), 0..12);
    (proptest::sample::select(texts), edits).prop_map(|(mut bytes, edits)| {
        for (at, byte, edit) in edits {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match edit {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => {
                    bytes.drain(at..(at + usize::from(byte)).min(bytes.len()));
                }
            }
        }
        bytes
    })
}

/// Finding all that is sound, however the reader cuts the bytes.
fn assert_total(bytes: &[u8]) {
    let found = scan_bytes(bytes);
    assert_sound(&found, bytes.len() as u64);
    assert_eq!(scan(BufReader::with_capacity(7, bytes)).expect("a slice"), found);
    let text = String::from_utf8_lossy(bytes);
    let _ = torch::error_in(&text);
}

fn name() -> impl Strategy<Value = String> {
    "[a-zA-Z_][a-zA-Z0-9_]{0,20}"
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..4000)) {
        assert_total(&bytes);
    }

    #[test]
    fn any_mixture_of_known_lines_is_read(bytes in soup()) {
        assert_total(&bytes);
    }

    #[test]
    fn any_mutation_of_a_fixture_is_read(bytes in mutated()) {
        assert_total(&bytes);
    }

    #[test]
    fn frames_come_back(
        frames in proptest::collection::vec(("/[ -!#-~é]{1,30}", 1_u32.., name(), proptest::option::of("[a-z(][ -~]{0,40}")), 1..300),
        message in "[ -~]{0,60}",
        noise in proptest::collection::vec("[a-z ]{0,40}", 0..4),
    ) {
        let mut text = noise.iter().fold(String::new(), |text, line| text + line + "\n");
        text.push_str("Traceback (most recent call last):\n");
        for (file, line, function, source) in &frames {
            let _ = writeln!(text, "  File \"{file}\", line {line}, in {function}");
            if let Some(source) = source {
                let _ = writeln!(text, "    {source}");
            }
        }
        let _ = write!(text, "some.module.SomeError: {message}\n2024-05-01 10:00:00 going on\n");
        let found = scan_bytes(text.as_bytes());
        prop_assert_eq!(found.tracebacks.len(), 1);
        let traceback = found.tracebacks.last().expect("one");
        prop_assert!(traceback.complete && !traceback.interleaved);
        let raised = traceback.raised().expect("an exception");
        prop_assert_eq!(&raised.type_name, "some.module.SomeError");
        prop_assert_eq!(&raised.message, message.trim_end());
        let omitted = raised.omitted_frames as usize;
        prop_assert_eq!(raised.frames.len() + omitted, frames.len());
        let expected = frames.iter().enumerate().filter(|(at, _)| !(64..64 + omitted).contains(at)).map(|(_, frame)| frame);
        for (have, (file, line, function, source)) in raised.frames.iter().zip(expected) {
            prop_assert_eq!((&have.file, have.line, &have.function), (file, *line, function));
            let source = source.as_ref().map(|source| source.trim_end().to_owned());
            prop_assert_eq!(&have.source, &source);
            let shown = &text[usize::try_from(have.span.start).expect("small")..usize::try_from(have.span.end).expect("small")];
            prop_assert!(shown.starts_with(&format!("  File \"{file}\"")), "{}", shown);
        }
    }

    /// `_Py_DumpASCII` of CPython's Python/traceback.c.
    #[test]
    fn names_that_faulthandler_escaped_come_back(
        names in proptest::collection::vec(("/[ -!#-\\[\\]-~éß大🎲]{1,30}", "[a-z_éß大🎲]{1,20}"), 1..20),
    ) {
        let dumped = |name: &str| {
            name.chars().fold(String::new(), |text, c| match u32::from(c) {
                0x20..0x7f => text + &c.to_string(),
                code @ ..=0xff => format!("{text}\\x{code:02x}"),
                code @ ..=0xffff => format!("{text}\\u{code:04x}"),
                code => format!("{text}\\U{code:08x}"),
            })
        };
        let mut text = "Fatal Python error: Aborted\n\nCurrent thread 0x00007f (most recent call first):\n".to_string();
        for (file, function) in names.iter().rev() {
            let _ = writeln!(text, "  File \"{}\", line 3 in {}", dumped(file), dumped(function));
        }
        let found = scan_bytes(text.as_bytes());
        let thread = &found.fatal_errors.last().expect("one").threads[0];
        let have: Vec<_> = thread.frames.iter().map(|frame| (frame.file.clone(), frame.function.clone())).collect();
        prop_assert_eq!(have, names);
    }
}

// -------------------------------------------------------------------------------------------------------- single claims

#[test]
fn a_long_line_costs_no_memory_and_hides_nothing() {
    let filler = "x".repeat(1_000_000);
    let assertion = "/a.cu:1: f: block: [0,0,0], thread: [1,0,0] Assertion `x` failed.";
    // 1,000 of them at all sorts of offsets to the pieces' borders.
    let text = format!(
        "{filler}{}{filler}Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nKeyError: 1\n",
        format!("{assertion} {} ", "y".repeat(731)).repeat(1000)
    );
    let found = scan_bytes(text.as_bytes());
    let counts: u64 = found.assertions.iter().map(|assertion| assertion.count).sum();
    assert_eq!(counts, 1000);
    assert_eq!(found.tracebacks.last().and_then(Traceback::raised).map(|raised| raised.frames.len()), Some(1));
}

#[test]
fn a_huge_message_keeps_both_ends() {
    let text = format!(
        "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nKeyError: {}the end\n2024-05-01 10:00:00 on\n",
        "m".repeat(5_000_000)
    );
    let found = scan_bytes(text.as_bytes());
    let raised = found.tracebacks.last().and_then(Traceback::raised).expect("an exception");
    assert!(raised.message.starts_with("mmm") && raised.message.ends_with("mthe end"), "{}", raised.message.len());
    assert!(raised.message.len() < 17 * 1024 && raised.message.contains("bytes omitted"));
}

#[test]
fn a_message_does_not_swallow_the_programs_output() {
    let output = "step done without a time stamp\n".repeat(100_000);
    let text = format!("Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nKeyError: 'k'\n{output}");
    let found = scan_bytes(text.as_bytes());
    let span = found.tracebacks.last().expect("a traceback").span;
    assert!(span.end < 20_000, "{span:?}");
}

#[test]
fn many_tracebacks_are_bounded() {
    let mut text = String::new();
    for n in 0..1000 {
        let _ = writeln!(text, "Traceback (most recent call last):\n  File \"a.py\", line {n}, in f\nKeyError: {n}");
    }
    let found = scan_bytes(text.as_bytes());
    assert_eq!((found.tracebacks.len(), found.tracebacks.omitted(), found.tracebacks.total()), (128, 872, 1000));
    let last = found.tracebacks.last().and_then(Traceback::raised).expect("an exception");
    assert_eq!(last.message, "999");
}

#[test]
fn a_progress_bar_is_many_short_lines() {
    let mut bar = String::new();
    for n in 0..10_000 {
        let _ = write!(bar, "\r{n}%|###   | {n}/10000");
    }
    let text = format!("{bar}Traceback (most recent call last):\r\n  File \"a.py\", line 1, in f\r\nKeyError: 1\r\n");
    let found = scan_bytes(text.as_bytes());
    let span = found.tracebacks.last().expect("a traceback").span;
    let shown = &text[usize::try_from(span.start).expect("small")..usize::try_from(span.end).expect("small")];
    assert!(shown.starts_with("9999%|") && shown.ends_with("KeyError: 1"), "{shown}");
}

#[test]
fn an_error_is_found_in_a_message() {
    let error = torch::error_in(
        "Caught something\nCUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`\nmore",
    )
    .expect("an error");
    assert_eq!(error.name.as_deref(), Some("CUBLAS_STATUS_NOT_INITIALIZED"));
    assert_eq!(error.call.as_deref(), Some("cublasCreate(handle)"));
    assert_eq!(torch::error_in("nothing of the kind"), None);
}
