use super::*;
use crate::finding::FindingKind;
use crate::testing;
use proptest::prelude::*;
use serde_json::{Value, json};

pub(super) const LOSS: &str =
    "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>";
const ASSERTED: &str = "/pytorch/aten/src/ATen/native/cuda/Loss.cu:245: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [17,0,0] Assertion `t >= 0 && t < n_classes` failed.\n";

fn frame(file: &str, line: u32) -> Value {
    json!({"file": file, "line": line, "function": "f", "user": file.starts_with("/p/")})
}

fn launch(seq: u64, kernel: &str, lines: &[u32]) -> Value {
    let mut frames = vec![frame("/lib/torch/nn/functional.py", 3462)];
    frames.extend(lines.iter().map(|line| frame("/p/train.py", *line)));
    json!({
        "seq": seq, "kind": "kernel", "kernel": kernel, "symbol": "_Z1k", "grid": [1, 1, 1], "block": [32, 1, 1],
        "device": 0, "stream": 0, "thread": 7, "state": "running", "frames": frames,
    })
}

fn with(mut launch: Value, more: Value) -> Value {
    if let (Value::Object(launch), Value::Object(more)) = (&mut launch, more) {
        launch.extend(more);
    }
    launch
}

fn fault(confidence: &str, culprits: &[Value]) -> String {
    json!({
        "type": "fault", "code": 710, "name": "CUDA_ERROR_ASSERT", "confidence": confidence, "culprits": culprits,
        "surfaced": {"call": "cuStreamSynchronize", "frames": [frame("/p/train.py", 47)]},
        "evidence": ["launch #41 completed, launch #42 did not"], "around": [],
    })
    .to_string()
}

const START: &str = r#"{"type":"start","version":1,"pid":7,"argv":["python","train.py"],"backend":"cupti","driver_version":13000,"cupti_version":130000,"python":"3.12.3","markers":"adaptive","ring":65536}"#;
const ACTIVE: &str = r#"{"type":"active","device":0,"markers":"on"}"#;
const EXIT: &str =
    r#"{"type":"exit","launches":431,"markers":120,"evicted":0,"streams":2,"bytes":9000,"faulted":false}"#;

fn capture(lines: &[&str], stderr: &str) -> Capture {
    let mut capture = testing::capture("/p", stderr.as_bytes());
    let text = lines.join("\n") + "\n";
    capture.files.insert(REPORT.into(), text.into_bytes());
    capture
}

/// The claims, and all findings.
fn found(lines: &[&str], stderr: &str) -> (Vec<Finding>, Vec<Finding>) {
    let all = Recorder.parse(&capture(lines, stderr));
    (all.iter().filter(|f| f.kind.is_claim()).cloned().collect(), all)
}

fn lines_of(findings: &[Finding]) -> Vec<Option<u32>> {
    findings.iter().map(|f| f.location.innermost_own().map(|(_, line)| line)).collect()
}

#[test]
fn a_fault_names_line_kernel_and_what_the_assertion_tells() {
    let fault = fault("exact", &[launch(42, LOSS, &[43, 61])]);
    let (claims, all) = found(&[START, ACTIVE, &fault], ASSERTED);
    assert_eq!(lines_of(&claims), [Some(43)]);
    let place = &claims[0].location;
    assert_eq!(place.python.first().map(|f| f.line), Some(61), "outermost first");
    assert_eq!(place.device.as_ref().map(|d| d.line), Some(245));
    assert_eq!(place.kernel.as_ref().and_then(|k| k.thread), Some([17, 0, 0]));
    let surfaced: Vec<_> = all.iter().filter(|f| f.message.contains("surfaced")).cloned().collect();
    assert_eq!(lines_of(&surfaced), [Some(47)]);
    assert_eq!(surfaced[0].kind, FindingKind::Context);
}

#[test]
fn the_assertion_decides_between_candidates() {
    let spin = launch(8, "at::cuda::spin_kernel", &[30]);
    let fault = fault("candidates", &[spin.clone(), launch(10, LOSS, &[43])]);
    let (claims, all) = found(&[&fault], ASSERTED);
    assert_eq!(lines_of(&claims), [Some(43)]);
    assert!(claims[0].message.contains("names its kernel"), "{}", claims[0].message);
    assert!(!all.iter().any(|f| f.message.contains("too")));
    // Two launches of the kernel that asserted: the name decides nothing, and both are said.
    let fault = super::tests::fault("candidates", &[spin, launch(10, LOSS, &[43]), launch(11, LOSS, &[44])]);
    let (claims, all) = found(&[&fault], ASSERTED);
    assert_eq!(lines_of(&claims), [Some(43)]);
    assert!(claims[0].message.contains("likeliest of 3"), "{}", claims[0].message);
    assert_eq!(all.iter().filter(|f| f.message.ends_with("can have faulted too")).count(), 2);
}

#[test]
fn where_nothing_decides_the_likeliest_is_the_claim_and_says_so() {
    let gather = launch(10, "at::native::vectorized_gather_kernel<16, long>", &[43]);
    let fault = fault("candidates", &[gather, launch(8, "at::cuda::spin_kernel", &[30])]);
    let (claims, all) = found(&[&fault], "");
    assert_eq!(lines_of(&claims), [Some(43)]);
    assert!(claims[0].message.contains("likeliest of 2"), "{}", claims[0].message);
    assert!(all.iter().any(|f| f.kind == FindingKind::Context && f.location.innermost_own().map(|p| p.1) == Some(30)));
    // A name in standard error decides, but not in the recorder's own words.
    assert!(!found(&[&fault], "faultlab: kernel spin_kernel\n").0[0].message.contains("names its kernel"));
    assert_eq!(lines_of(&found(&[&fault], "trap in spin_kernel at 0x1\n").0), [Some(30)]);
}

#[test]
fn a_backward_launch_is_its_forward_line() {
    let forward = json!({"forward": {
        "node": "GatherBackward0", "sequence": 9, "kernel": "gather", "frames": [frame("/p/train.py", 21)],
    }});
    let engine = json!([
        {"file": "/lib/torch/autograd/graph.py", "line": 869, "function": "_engine_run_backward", "user": false},
        frame("/p/train.py", 45),
    ]);
    for frames in [json!([]), engine] {
        let launch = with(with(launch(42, "scatter", &[]), forward.clone()), json!({"frames": frames}));
        let (claims, _) = found(&[&fault("exact", &[launch])], "");
        assert_eq!(lines_of(&claims), [Some(21)]);
        assert_eq!(claims[0].location.module.as_deref(), Some("GatherBackward0"));
    }
    // A backward written in Python has a line of its own.
    let own = with(launch(42, "scatter", &[33]), forward);
    assert_eq!(lines_of(&found(&[&fault("exact", &[own])], "").0), [Some(33)]);
}

#[test]
fn a_generated_kernel_is_the_line_it_was_made_from() {
    let source = json!({"source": [frame("/p/train.py", 14), frame("/p/train.py", 13)]});
    let launch = with(launch(42, "triton_poi_fused_index_0", &[24]), source);
    let stderr = "/tmp/torchinductor_root/ab/cab.py:25: unknown: block: [0,0,0], thread: [9,0,0] Assertion `index out of bounds: 0 <= tmp4 < 8` failed.\n";
    let (claims, _) = found(&[&fault("candidates", &[super::tests::launch(41, LOSS, &[5]), launch])], stderr);
    assert_eq!(lines_of(&claims), [Some(14)]);
    assert!(claims[0].message.contains("generated code"), "{}", claims[0].message);
}

#[test]
fn a_graph_is_its_replay_with_the_captured_line_beside_it() {
    let node = json!({"kind": "graph", "kernel": "cuGraphLaunch", "node": {
        "index": 3, "of": 7, "captured": launch(0, "at::native::indexSelectSmallIndex<float>", &[13]),
    }});
    let graph = with(launch(42, "", &[31]), node);
    let (claims, all) = found(&[&fault("exact", &[graph])], "");
    assert_eq!(lines_of(&claims), [Some(31)]);
    assert!(claims[0].message.contains("node 3 of 7"), "{}", claims[0].message);
    assert!(claims[0].location.kernel.as_ref().is_some_and(|k| k.name.contains("indexSelect")));
    let captured: Vec<_> = all.iter().filter(|f| f.message.contains("captured")).cloned().collect();
    assert_eq!(lines_of(&captured), [Some(13)]);
}

#[test]
fn the_last_hang_is_a_claim() {
    let hang = |seconds: f64, running: &[Value]| {
        json!({"type": "hang", "why": "deadline", "seconds": seconds, "running": running, "host": [frame("/p/train.py", 50)]})
            .to_string()
    };
    let waiting = with(launch(9, "mul", &[24]), json!({"state": "waiting"}));
    let (early, late) = (hang(5.0, &[]), hang(10.0, &[waiting, launch(8, "spin", &[23])]));
    let (claims, all) = found(&[START, ACTIVE, &early, &late], "");
    assert_eq!(lines_of(&claims), [Some(23)]);
    assert!(claims[0].message.starts_with("a hang: nothing has finished for 10 s"), "{}", claims[0].message);
    assert!(all.iter().any(|f| f.message == "where the host is"));
    // Nothing runs: the host is elsewhere, and the device is not accused.
    assert!(found(&[START, ACTIVE, &early], "").0.is_empty());
}

#[test]
fn a_fault_without_its_launch_claims_no_place() {
    let (claims, _) = found(&[&fault("unlocated", &[])], "");
    assert_eq!(claims.len(), 1);
    assert!(!claims[0].location.names_a_place());
}

#[test]
fn a_healthy_program_is_silent() {
    assert!(found(&[START, ACTIVE, EXIT], "").1.is_empty());
}

#[test]
fn only_the_recorders_own_records_prove_it() {
    let fault = fault("exact", &[launch(42, LOSS, &[43])]);
    let proven = |lines: &[&str]| {
        let capture = capture(lines, "");
        matches!(Recorder.activity(&capture, &Recorder.parse(&capture)), Activity::Proven(_))
    };
    assert!(proven(&[START, ACTIVE, EXIT]));
    assert!(proven(&[START, ACTIVE, &fault]));
    // A worker that launched nothing ends beside the program, before or after it.
    let idle = r#"{"type":"exit","launches":0,"markers":0,"evicted":0,"streams":0,"bytes":0,"faulted":false}"#;
    assert!(proven(&[START, idle, START, ACTIVE, EXIT]));
    let busy = START.replace("\"cupti\"", "\"cupti-busy\"");
    let no_markers = ACTIVE.replace("\"on\"", "\"cuStreamWriteValue32 is not there\"");
    let none_set = EXIT.replace("\"markers\":120", "\"markers\":0");
    let gave_way = r#"{"type":"notice","code":"gave-way","message":"a profiler needs CUPTI"}"#;
    for lines in [
        &[][..],
        &[START],
        &[START, idle],
        &[&busy],
        &[START, ACTIVE],
        &[START, &no_markers, EXIT],
        &[START, ACTIVE, &none_set],
        &[START, ACTIVE, gave_way, EXIT],
        &["[faultlab: sh ended with exit 2]"],
    ] {
        assert!(!proven(lines), "{lines:?}");
    }
    assert!(matches!(Recorder.activity(&testing::capture("/p", b""), &[]), Activity::Unproven(_)));
}

#[test]
fn the_driver_is_told_to_load_the_library() {
    let target = Target {
        python: "python3".into(),
        program: "/p/train.py".into(),
        args: Vec::new(),
        device: Device::Cuda,
        mode: Mode::Async,
        work: "/w".into(),
        programs: [("recorder".to_string(), "/opt/libfaultlab_recorder.so".to_string())].into(),
    };
    let command = Recorder.command(&target);
    assert_eq!(command.env["CUDA_INJECTION64_PATH"], "/opt/libfaultlab_recorder.so");
    assert_eq!(command.env["FAULTLAB_RECORDER_DIR"], "/w");
    assert_eq!(command.env["FAULTLAB_RECORDER_MARKERS"], "adaptive");
    assert!(!command.env.contains_key("CUDA_LAUNCH_BLOCKING"));
    assert_eq!(command.after[0].output, REPORT);
    assert_eq!(Recorder.objection(Mode::Sync, Device::Cuda), None);
    assert!(Recorder.objection(Mode::Async, Device::Cpu).is_some());
}

proptest! {
    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 0usize..3000, keep in any::<bool>()) {
        let node = json!({"node": {"index": 3, "of": 7, "captured": launch(0, LOSS, &[13])}});
        let fault = fault("candidates", &[with(launch(42, "k", &[31]), node), launch(43, LOSS, &[0])]);
        let text = [START, ACTIVE, &fault, EXIT].join("\n");
        let mut log = text.as_bytes()[..cut.min(text.len())].to_vec();
        log.extend(&bytes);
        if keep {
            log.extend(b"\n");
            log.extend(text.as_bytes());
        }
        let mut capture = capture(&[], ASSERTED);
        capture.stderr.extend(&bytes);
        let length = log.len() as u64;
        capture.files.insert(REPORT.into(), log);
        let findings = Recorder.parse(&capture);
        for finding in findings.iter().filter(|f| f.evidence.stream == REPORT) {
            prop_assert!(finding.evidence.start <= finding.evidence.end && finding.evidence.end <= length);
        }
        let _ = Recorder.activity(&capture, &findings);
    }
}

// ---- With a core dump ----

/// What cuda-gdb said of the dump of scenario `label-oob`, shortened.
const LOSS_DUMP: &str = "[Current focus set to CUDA kernel 0, grid 204, block (0,0,0), thread (17,0,0), device 0, sm 124, warp 0, lane 17]\n\
    CUDA Exception: Warp Assert\n\
    #0  0x00007f4e6f7df780 in void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*, float*, float const*, long const*, float const*, bool, long, long, long, long)<<<(1,1,1),(512,1,1)>>> ()\n";
/// The same of a dump without a focus.
const RUNNING: &str = "*      0      -   0   36 Active 0x00011c00f003c00e003000300030003000 (128,1,1) (256,1,1) pack_rows() \n\
    CUDA Exception: Warp Illegal Address\n";

fn sized(seq: u64, kernel: &str, line: u32, grid: u32, block: u32) -> Value {
    with(launch(seq, kernel, &[line]), json!({"grid": [grid, 1, 1], "block": [block, 1, 1]}))
}

fn dumped(culprits: &[Value], dump: &str) -> Vec<Finding> {
    let mut capture = capture(&[&fault("candidates", culprits)], "");
    capture.files.insert("coredump.txt".into(), dump.as_bytes().to_vec());
    RecorderDump.parse(&capture)
}

fn claim(findings: &[Finding]) -> &Finding {
    let claims: Vec<&Finding> = findings.iter().filter(|f| f.kind.is_claim()).collect();
    assert_eq!(claims.len(), 1, "{claims:?}");
    claims[0]
}

fn line(finding: &Finding) -> Option<u32> {
    finding.location.innermost_own().map(|(_, line)| line)
}

#[test]
fn the_dump_decides_by_kernel_and_size() {
    let others = [
        sized(7, "at::native::vectorized_gather_kernel<16, long>", 30, 1, 512),
        sized(8, LOSS, 31, 2, 512),
        sized(9, &LOSS.replace("float, float, long", "double, double, long"), 32, 1, 512),
    ];
    let mut all = others.to_vec();
    all.push(sized(10, LOSS, 43, 1, 512));
    let found = dumped(&all, LOSS_DUMP);
    let claim = claim(&found);
    assert_eq!(line(claim), Some(43));
    assert!(claim.message.contains("the core dump names its kernel and size, of 4"), "{}", claim.message);
    assert_eq!(claim.location.kernel.as_ref().and_then(|k| k.thread), Some([17, 0, 0]));
    // One line twice: it stays decided. Two lines: both are said.
    all.push(sized(11, LOSS, 43, 1, 512));
    assert!(super::tests::claim(&dumped(&all, LOSS_DUMP)).message.contains("names its kernel and size"));
    all.push(sized(12, LOSS, 44, 1, 512));
    let found = dumped(&all, LOSS_DUMP);
    assert!(super::tests::claim(&found).message.contains("in this size by 3 of 6"));
    assert!(found.iter().any(|f| f.message.ends_with("can have faulted too") && line(f) == Some(44)));
}

#[test]
fn of_equal_launches_the_dumps_grid_number_tells_the_likelier() {
    let nth = |launch: Value, ordinals: &[u64]| with(launch, json!({"nth_kernel": ordinals}));
    let both = |first: &[u64], second: &[u64]| {
        dumped(&[nth(sized(210, LOSS, 43, 1, 512), first), nth(sized(260, LOSS, 44, 1, 512), second)], LOSS_DUMP)
    };
    let found = both(&[150, 170], &[160, 204]);
    assert_eq!(line(claim(&found)), Some(44));
    assert!(claim(&found).message.contains("its ordinal is the dump's grid number, 204"), "{}", claim(&found).message);
    assert!(found.iter().any(|f| f.message.ends_with("can have faulted too") && line(f) == Some(43)));
    // It is nobody's, or everybody's: that says nothing.
    for (first, second) in [(&[150][..], &[160][..]), (&[204], &[204]), (&[], &[])] {
        let found = both(first, second);
        assert_eq!(line(claim(&found)), Some(43));
        assert!(!claim(&found).message.contains("grid number"), "{}", claim(&found).message);
    }
}

#[test]
fn a_dump_is_believed_against_the_driver() {
    let done = [sized(90, LOSS, 43, 1, 512), sized(80, "gather", 30, 1, 32)];
    let fault = fault("exact", &[sized(107, "fill", 26, 64, 128)]);
    let mut fault: Value = serde_json::from_str(&fault).unwrap();
    fault["done"] = json!(done);
    let mut capture = capture(&[&fault.to_string()], "");
    capture.files.insert("coredump.txt".into(), LOSS_DUMP.as_bytes().to_vec());
    let found = RecorderDump.parse(&capture);
    assert_eq!(line(claim(&found)), Some(43));
    assert!(claim(&found).message.contains("the driver had said that it was done"), "{}", claim(&found).message);
}

#[test]
fn a_dump_that_fits_nothing_is_said() {
    let found = dumped(&[sized(7, "gather", 30, 1, 32), sized(8, "scatter", 31, 1, 32)], LOSS_DUMP);
    assert!(claim(&found).message.contains("which none of them launched"), "{}", claim(&found).message);
}

#[test]
fn a_dump_without_a_focus_has_its_only_kernel() {
    let found = dumped(&[sized(7, "pack_rows", 30, 64, 256), sized(8, "pack_rows", 31, 128, 256)], RUNNING);
    assert_eq!(line(claim(&found)), Some(31));
}

#[test]
fn a_node_of_a_graph_is_found_by_the_dump() {
    let node = |kernel, at| with(sized(0, kernel, at, 1, 512), json!({"state": "running"}));
    let graph = with(
        launch(20, "cuGraphLaunch", &[60]),
        json!({"kind": "graph", "node": {
            "index": 1, "of": 9, "captured": node("gather", 12), "others": [node("scatter", 13), node(LOSS, 14)],
        }}),
    );
    let found = dumped(&[sized(7, "gather", 30, 1, 32), graph], LOSS_DUMP);
    assert_eq!(line(claim(&found)), Some(60));
    let captured = found.iter().find(|f| f.message.contains("was captured")).expect("the line is said");
    assert_eq!(line(captured), Some(14));
}

#[test]
fn without_the_recorders_report_the_dump_speaks_for_itself() {
    let mut capture = capture(&[], "");
    capture.files.insert("coredump.txt".into(), LOSS_DUMP.as_bytes().to_vec());
    let found = RecorderDump.parse(&capture);
    assert!(claim(&found).location.kernel.is_some());
}

#[test]
fn the_preloaded_recorder_proves_itself_without_markers() {
    let start = START.replace("cupti\",", "interposed\",").replace("adaptive", "off");
    let active = ACTIVE.replace("on", "off");
    let exit = EXIT.replace("\"markers\":120", "\"markers\":0");
    let on = On { backend: "interposed", markers: "off" };
    let proven = |lines: &[&str]| matches!(Seen::activity(&capture(lines, ""), &on), Activity::Proven(_));
    assert!(proven(&[&start, &active, &exit]));
    assert!(!proven(&[START, &active, &exit]), "by CUPTI no core dump is written");
    assert!(!proven(&[&start, &exit]) && !proven(&[&start, &active]) && !proven(&[]));
}
