//! What a running program is doing, for people at a terminal.

use std::fmt::Write as _;

use super::terminal::{BOLD, GOOD, code_frame, cut, wrapped};
use crate::finding::{NativeFrame, PythonFrame};
use crate::tool::gdb::{Attached, Thread};

/// C++ frames of a thread that are shown; `gdb.jsonl` has the others.
const SHOWN: usize = 12;

/// Where Python and its packages are installed: a frame elsewhere is the program's own.
const LIBRARIES: [&str; 4] = ["/site-packages/", "/dist-packages/", "/lib/python3", "<"];

/// `source` gives a file's text, if it is there.
pub(crate) fn render(title: &str, found: &Attached, source: &dyn Fn(&str) -> Option<String>, width: usize) -> String {
    let width = width.max(40);
    let mut out = String::new();
    wrapped(&mut out, BOLD, title, "", width);
    let stopped = format!("gdb {} looked at {} threads, and let it go on.", found.gdb, found.threads.len());
    wrapped(&mut out, anstyle::Style::new(), &stopped, "", width);
    let (busy, others): (Vec<&Thread>, Vec<&Thread>) =
        found.threads.iter().enumerate().fold((Vec::new(), Vec::new()), |(mut busy, mut others), (at, thread)| {
            // The main thread, and every other one that runs Python.
            if at == 0 || !thread.location.python.is_empty() {
                busy.push(thread);
            } else {
                others.push(thread);
            }
            (busy, others)
        });
    for thread in busy {
        out.push('\n');
        one_thread(&mut out, thread, source, width);
    }
    if !others.is_empty() {
        out.push('\n');
        wrapped(&mut out, BOLD, "Threads without Python", "", width);
        // A pool has many that wait at the same place.
        let mut places: Vec<(String, Vec<String>)> = Vec::new();
        for thread in others {
            let place = thread.location.native.first().map_or_else(|| "nowhere known".into(), native);
            let number = thread.number.to_string();
            match places.iter_mut().find(|(known, _)| *known == place) {
                Some((_, numbers)) => numbers.push(number),
                None => places.push((place, vec![number])),
            }
        }
        for (place, numbers) in places {
            let _ = writeln!(out, "{}", cut(&format!("  {}: {place}", numbers.join(", ")), width));
        }
    }
    out
}

fn one_thread(out: &mut String, thread: &Thread, source: &dyn Fn(&str) -> Option<String>, width: usize) {
    wrapped(out, BOLD, &format!("Thread {} ({})", thread.number, thread.name), "", width);
    let location = &thread.location;
    if let Some(frame) = location.python.iter().rev().find(|frame| is_own(frame)).or(location.python.last()) {
        let place = format!("  Python is at {}:{} in {}", frame.file, frame.line, frame.function);
        let _ = writeln!(out, "{}", cut(&place, width));
        for line in code_frame(&source(&frame.file).unwrap_or_default(), frame.line, GOOD, width) {
            let _ = writeln!(out, "{}", line.trim_end());
        }
        wrapped(out, anstyle::Style::new(), "Python stack, innermost first:", "  ", width);
        for frame in location.python.iter().rev() {
            let _ =
                writeln!(out, "{}", cut(&format!("    {}:{} in {}", frame.file, frame.line, frame.function), width));
        }
    } else {
        wrapped(
            out,
            anstyle::Style::new(),
            "gdb found no Python stack: it takes python3-dbg, or libpython's support for gdb.",
            "  ",
            width,
        );
    }
    wrapped(out, anstyle::Style::new(), "C++ stack, innermost first:", "  ", width);
    for frame in location.native.iter().take(SHOWN) {
        let _ = writeln!(out, "{}", cut(&format!("    {}", native(frame)), width));
    }
    if let Some(more @ 1..) = location.native.len().checked_sub(SHOWN) {
        let _ = writeln!(out, "    … and {more} more");
    }
}

fn is_own(frame: &PythonFrame) -> bool {
    !LIBRARIES.iter().any(|library| frame.file.contains(library))
}

fn native(frame: &NativeFrame) -> String {
    // The place first: a line is cut at its end, and names of C++ functions are long.
    match (&frame.source, &frame.module) {
        (Some(source), _) => format!("{source} in {}", frame.symbol),
        (None, Some(module)) => format!("({}) {}", module.rsplit('/').next().unwrap_or(module), frame.symbol),
        (None, None) => frame.symbol.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Location;

    #[test]
    fn the_programs_own_line_and_the_native_frame_are_named() {
        let python = |file: &str, line, function: &str| PythonFrame {
            file: file.into(),
            own: None,
            line,
            function: function.into(),
            source: None,
        };
        let frame = |symbol: &str, source: Option<&str>| NativeFrame {
            symbol: symbol.into(),
            module: Some("/lib/libtorch_cpu.so".into()),
            source: source.map(Into::into),
        };
        let main = Location {
            python: vec![
                python("train.py", 4, "<module>"),
                python("train.py", 2, "wait"),
                python("/usr/lib/python3/dist-packages/torch/_tensor.py", 9, "item"),
            ],
            native: vec![frame("at::native::item", Some("/src/Scalar.cpp:3")), frame("??", None)],
            ..Location::default()
        };
        let pool = Location { native: vec![frame("futex_wait", None)], ..Location::default() };
        let thread =
            |number, location: &Location| Thread { number, name: "python3".into(), location: location.clone() };
        let found = Attached {
            gdb: "16.3".into(),
            complete: true,
            threads: vec![thread(1, &main), thread(2, &pool), thread(3, &pool)],
        };
        let source = |file: &str| (file == "train.py").then(|| "def wait():\n    flag.item()\n\nwait()\n".to_string());
        let text = anstream::adapter::strip_str(&render("process 7: train.py", &found, &source, 100)).to_string();
        for part in [
            "gdb 16.3 looked at 3 threads",
            "Python is at train.py:2 in wait",
            ">   2 |     flag.item()",
            "    /src/Scalar.cpp:3 in at::native::item",
            "    (libtorch_cpu.so) ??",
            "  2, 3: (libtorch_cpu.so) futex_wait",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
    }
}
