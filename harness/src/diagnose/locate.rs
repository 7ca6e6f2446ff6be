//! From what tools say to lines of the user's. Pure.

use faultlab_recorder::format::{self, Fault, Frame, Launch};

use super::model::{Assertion, Kernel, Launched, Place, Related, Surfaced};
use super::observe::{Observed, is_user_file, user_frame};
use super::source::{self, ReadSource};
use crate::finding::{Finding, PythonFrame};
use crate::parse::DeviceAssertion;

/// Callers that are shown beside a line.
const CALLERS: usize = 3;

/// A place without its source.
fn bare_place(file: &str, line: u32, function: &str, role: &str, by: &str) -> Place {
    Place {
        file: file.into(),
        line,
        function: function.into(),
        role: role.into(),
        named_by: by.into(),
        kernel: None,
        source: Vec::new(),
        related: Vec::new(),
    }
}

fn related(role: &str, frame: &Frame) -> Related {
    Related {
        role: role.into(),
        file: frame.file.clone(),
        line: frame.line,
        function: frame.function.clone(),
        text: None,
    }
}

/// The line that a launch stands for; `None` where no frame of the user's is known.
pub fn place_of(launch: &Launch, by: &str) -> Option<Place> {
    let place = line_of(launch, by)?;
    Some(Place { kernel: Some(kernel_of(launch)), ..place })
}

fn line_of(launch: &Launch, by: &str) -> Option<Place> {
    let own = user_frame(&launch.frames);
    let callers = |frames: &[Frame], of: Option<&Frame>| -> Vec<Related> {
        let users = frames.iter().filter(|f| f.user && f.line > 0);
        users.filter(|f| Some(*f) != of).take(CALLERS).map(|f| related("called from", f)).collect()
    };
    // The likeliest to fault comes first.
    if let Some((first, others)) = launch.source.split_first() {
        let role = "is compiled into the generated kernel that faulted";
        let mut place = bare_place(&first.file, first.line, &first.function, role, by);
        let mut fused: Vec<&Frame> = Vec::new();
        for frame in others {
            if frame.line != first.line && !fused.iter().any(|f| (&f.file, f.line) == (&frame.file, frame.line)) {
                fused.push(frame);
            }
        }
        place.related = fused.into_iter().map(|frame| related("fused with", frame)).collect();
        place.related.extend(callers(&launch.frames, None));
        return Some(place);
    }
    if let Some(node) = &launch.node {
        let captured = user_frame(&node.captured.frames);
        let capture = captured.map(|frame| {
            let role = format!("node {} of {} of the graph was captured at", node.index, node.of);
            related(&role, frame)
        });
        if let Some(frame) = own {
            let mut place =
                bare_place(&frame.file, frame.line, &frame.function, "replayed the graph whose node faulted", by);
            place.related = capture.into_iter().chain(callers(&launch.frames, own)).collect();
            return Some(place);
        }
        return captured.map(|f| bare_place(&f.file, f.line, &f.function, "captured the graph node that faulted", by));
    }
    if let Some(forward) = &launch.forward
        && let Some(frame) = user_frame(&forward.frames).filter(|_| own.is_none() || format::is_engine(&launch.frames))
    {
        let role = format!("is the forward call whose backward ({}) faulted", forward.node);
        let mut place = bare_place(&frame.file, frame.line, &frame.function, &role, by);
        place.related = own.map(|own| related("backward was started at", own)).into_iter().collect();
        place.related.extend(callers(&forward.frames, Some(frame)));
        return Some(place);
    }
    if let Some(frame) = own {
        let role = match launch.kind.as_str() {
            "graph" => "replayed the graph that faulted",
            "memcpy" => "started the copy that faulted",
            "memset" => "started the fill that faulted",
            _ => "launched the kernel that faulted",
        };
        let mut place = bare_place(&frame.file, frame.line, &frame.function, role, by);
        place.related = callers(&launch.frames, own);
        return Some(place);
    }
    launch.native.iter().find_map(|frame| {
        let (file, line) = (frame.file.as_ref()?, frame.line?);
        let system = ["/usr/", "/build/"].iter().any(|root| file.starts_with(root));
        (!system).then(|| bare_place(file, line, &frame.function, "launched the kernel that faulted", by))
    })
}

/// The kernel of a launch; of a graph's launch the node's.
pub fn kernel_of(launch: &Launch) -> Kernel {
    let inner = launch.node.as_ref().map_or(launch, |node| &node.captured);
    let known = |dims: [u32; 3]| (dims != [0; 3]).then_some(dims);
    Kernel {
        name: if inner.kernel.is_empty() { inner.symbol.clone() } else { inner.kernel.clone() },
        grid: known(inner.grid),
        block: known(inner.block),
        device: (launch.device >= 0).then_some(launch.device),
        stream: Some(launch.stream),
        launch: Some(launch.seq),
    }
}

/// The bare name of a kernel: no result, namespaces, template arguments and parameters.
pub fn kernel_base(name: &str) -> &str {
    let name = name.trim().strip_prefix("void ").unwrap_or(name.trim());
    // `(anonymous namespace)` and `<unnamed>` are namespaces, not parameters.
    let mut depth = 0i32;
    let mut end = name.len();
    let bytes = name.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'<' | b'(' => {
                let rest = name.get(at..).unwrap_or_default();
                let namespace = rest.starts_with("(anonymous namespace)::") || rest.starts_with("<unnamed>::");
                if depth == 0 && !namespace {
                    end = at;
                    break;
                }
                depth += 1;
            }
            b'>' | b')' => depth -= 1,
            _ => {}
        }
    }
    let name = name.get(..end).unwrap_or(name);
    let name = name.rsplit("::").next().unwrap_or(name);
    name.split_whitespace().next_back().unwrap_or(name)
}

/// Can this kernel be the one that an assertion, a core dump or another report names? `None` where the name tells too
/// little: a lambda, `unknown`.
pub fn same_kernel(launched: &str, reported: &str) -> Option<bool> {
    let (launched, reported) = (kernel_base(launched), kernel_base(reported));
    let tells = |name: &str| {
        !name.is_empty() && name != "unknown" && !name.starts_with("operator") && !name.starts_with("__assert")
    };
    (tells(launched) && tells(reported)).then(|| launched == reported)
}

/// Of several launches those that a kernel's name, as another witness gives it, leaves; all where it tells nothing.
pub fn narrowed<'a>(culprits: &'a [Launch], kernel: &str) -> Vec<&'a Launch> {
    let left: Vec<&Launch> =
        culprits.iter().filter(|launch| same_kernel(&kernel_of(launch).name, kernel) == Some(true)).collect();
    if left.is_empty() { culprits.iter().collect() } else { left }
}

/// The last launches around the first culprit.
pub fn around(fault: &Fault) -> Vec<Launched> {
    let culprits: Vec<u64> = fault.culprits.iter().map(|launch| launch.seq).collect();
    fault
        .around
        .iter()
        .map(|launch| Launched {
            launch: launch.seq,
            kernel: kernel_of(launch).name,
            state: launch.state.clone(),
            stream: launch.stream,
            place: place_of(launch, "").as_ref().map(Place::short),
            culprit: culprits.contains(&launch.seq),
        })
        .collect()
}

/// Where the error came to light: the exception that ended the program, else the driver call that returned the error.
pub fn surfaced(observed: &Observed, fault: Option<&Fault>) -> Option<Surfaced> {
    if let Some((exception, frame)) = observed.surfaced() {
        let first = super::classify::first_line(&exception.message);
        let what =
            if first.is_empty() { exception.type_name.clone() } else { format!("{}: {first}", exception.type_name) };
        return Some(Surfaced {
            what,
            file: frame.map(|f| f.file.clone()),
            line: frame.map(|f| f.line),
            text: frame.and_then(|f| f.source.clone()),
            innocent: false,
        });
    }
    let format::Surfaced { call, frames } = &fault?.surfaced;
    let frame = user_frame(frames);
    Some(Surfaced {
        what: call.clone(),
        file: frame.map(|f| f.file.clone()),
        line: frame.map(|f| f.line),
        text: None,
        innocent: false,
    })
}

/// A device assertion in the model's form.
pub fn assertion(a: &DeviceAssertion) -> Assertion {
    Assertion {
        file: a.file.clone(),
        line: a.line,
        function: a.function.clone(),
        expression: a.expression.clone(),
        threads: a.count,
        block: a.first.block,
        thread: a.first.thread,
    }
}

/// The user's innermost frame of a finding, whose frames come outermost first. compute-sanitizer prints no folders:
/// such a frame is the user's where `find` knows a file of that name.
pub fn finding_place(finding: &Finding, role: &str, by: &str, find: &dyn Fn(&str) -> Option<String>) -> Option<Place> {
    let users: Vec<(String, &PythonFrame)> =
        finding.location.python.iter().rev().filter_map(|frame| Some((user_path(&frame.file, find)?, frame))).collect();
    let (file, frame) = users.first()?;
    let mut place = bare_place(file, frame.line, &frame.function, role, by);
    let callers = users.iter().skip(1).take(CALLERS);
    place.related = callers
        .map(|(file, frame)| Related {
            role: "called from".into(),
            file: file.clone(),
            line: frame.line,
            function: frame.function.clone(),
            text: None,
        })
        .collect();
    if let Some(kernel) = &finding.location.kernel {
        let (name, block) = (kernel.name.clone(), None);
        place.kernel = Some(Kernel { name, grid: None, block, device: None, stream: None, launch: None });
    }
    Some(place)
}

fn user_path(file: &str, find: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    if file.contains('/') { is_user_file(file).then(|| file.to_string()) } else { find(file) }
}

/// The user's innermost frame of a printed traceback.
pub fn exception_place(observed: &Observed, role: &str, by: &str) -> Option<Place> {
    let (exception, frame) = observed.surfaced()?;
    let frame = frame?;
    let mut place = bare_place(&frame.file, frame.line, &frame.function, role, by);
    let callers = exception.frames.iter().rev().filter(|f| is_user_file(&f.file) && f.span != frame.span).take(CALLERS);
    place.related = callers
        .map(|f| Related {
            role: "called from".into(),
            file: f.file.clone(),
            line: f.line,
            function: f.function.clone(),
            text: f.source.clone(),
        })
        .collect();
    Some(place)
}

/// Reads the source of places and of the lines beside them.
pub fn with_source(places: &mut [Place], read: &ReadSource<'_>) {
    for place in places {
        if let Some(text) = read(&place.file) {
            place.source = source::frame(&text, place.line);
        }
        for related in place.related.iter_mut().filter(|related| related.text.is_none()) {
            related.text = read(&related.file).and_then(|text| source::line_of(&text, related.line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::testing::{frame, launch};

    #[test]
    fn kernel_names() {
        for (name, base) in [
            ("nll_loss_forward_reduce_cuda_kernel_2d", "nll_loss_forward_reduce_cuda_kernel_2d"),
            (
                "void at::native::(anonymous namespace)::indexSelectSmallIndex<float, long, unsigned int, 2, 2, -2>(at::cuda::detail::TensorInfo<float>, int)",
                "indexSelectSmallIndex",
            ),
            ("void at::native::<unnamed>::nll_loss<float>(long)", "nll_loss"),
            ("copy_rows", "copy_rows"),
            ("", ""),
        ] {
            assert_eq!(kernel_base(name), base, "{name}");
        }
        assert_eq!(same_kernel("void f<int>(int)", "f"), Some(true));
        assert_eq!(same_kernel("f", "g"), Some(false));
        assert_eq!(same_kernel("f", "unknown"), None);
        assert_eq!(same_kernel("f", "x::operator()(int) const"), None);
    }

    #[test]
    fn the_users_innermost_frame_is_the_place() {
        let mut l = launch(7, "gather", &[]);
        l.frames =
            vec![frame("/v/site-packages/torch/f.py", 9, false), frame("/j/m.py", 4, true), frame("/j/t.py", 8, true)];
        let place = place_of(&l, "recorder").unwrap();
        assert_eq!((place.short(), place.related[0].line), ("m.py:4".into(), 8));
        assert_eq!(place.kernel.as_ref().and_then(|k| k.launch), Some(7));
        l.frames.clear();
        assert!(place_of(&l, "recorder").is_none());
    }

    #[test]
    fn a_backward_launch_is_joined_to_its_forward_line() {
        let mut l = launch(9, "nll_loss_backward", &[]);
        let forward = format::Forward {
            node: "NllLossBackward0".into(),
            sequence: 3,
            frames: vec![frame("/j/t.py", 5, true)],
            kernel: "nll_loss_forward".into(),
        };
        l.forward = Some(Box::new(forward));
        assert_eq!(place_of(&l, "recorder").unwrap().short(), "t.py:5");
        // The engine runs below the call of backward.
        l.frames = vec![frame("/v/site-packages/torch/autograd/graph.py", 1, false), frame("/j/t.py", 6, true)];
        l.frames[0].function = "_engine_run_backward".into();
        let place = &place_of(&l, "recorder").unwrap();
        assert_eq!((place.short(), place.related[0].line), ("t.py:5".into(), 6));
        // A `Function.backward` of the user's launches by itself.
        l.frames = vec![frame("/j/op.py", 2, true)];
        assert_eq!(place_of(&l, "recorder").unwrap().short(), "op.py:2");
    }

    #[test]
    fn a_graph_names_its_replay_and_its_capture() {
        let mut l = launch(12, "cuGraphLaunch", &[("/j/t.py", 31)]);
        l.kind = "graph".into();
        let captured = launch(3, "index_copy", &[("/j/t.py", 13)]);
        l.node = Some(Box::new(format::Node { index: 1, of: 4, captured, suspects: Vec::new(), others: Vec::new() }));
        let place = &place_of(&l, "recorder").unwrap();
        assert_eq!((place.short(), place.related[0].line), ("t.py:31".into(), 13));
        assert_eq!(place.kernel.as_ref().map(|k| k.name.as_str()), Some("index_copy"));
        l.frames.clear();
        assert_eq!(place_of(&l, "recorder").unwrap().short(), "t.py:13");
    }

    #[test]
    fn a_fused_kernel_stands_for_all_its_lines() {
        let mut l = launch(12, "triton_poi_fused_0", &[("/j/t.py", 24)]);
        l.source = vec![frame("/j/t.py", 14, true), frame("/j/t.py", 13, true), frame("/j/t.py", 13, true)];
        let place = place_of(&l, "recorder").unwrap();
        let related: Vec<(&str, u32)> = place.related.iter().map(|r| (r.role.as_str(), r.line)).collect();
        assert_eq!((place.line, related), (14, vec![("fused with", 13), ("called from", 24)]));
    }

    #[test]
    fn another_witness_narrows_the_candidates() {
        let culprits = [launch(1, "void spin(long)", &[]), launch(2, "void gather<int>(int)", &[])];
        assert_eq!(narrowed(&culprits, "gather").iter().map(|l| l.seq).collect::<Vec<_>>(), [2]);
        assert_eq!(narrowed(&culprits, "other").len(), 2);
    }
}
