//! `breakpoint`: conditional breakpoints, set through debugpy's protocol (DAP) on the program, which is not edited. They
//! come from `breakpoints.json` beside the program:
//!
//! ```json
//! [{ "line": "loss = criterion(logits, labels)", "condition": "labels.max() >= logits.shape[1]",
//!    "values": ["labels.max().item()", "logits.shape"] }]
//! ```
//!
//! `line` is the text of a line, so that the file survives edits; `function` tells one of several apart. The client
//! (`inject/breakpoint.py`) starts the program under debugpy, reports the first stop at which a condition holds, takes
//! the breakpoints away, and lets the program go on to its own end. A report of it:
//!
//! ```text
//! {"message": "stopped before this line: labels.max() >= logits.shape[1]",
//!  "python": [{"file": "<SCENARIOS>/label-oob/train.py", "line": 63, "function": "<module>"}, …,
//!             {"file": "<SCENARIOS>/label-oob/train.py", "line": 43, "function": "train_step"}],
//!  "values": ["labels.max().item() = 10", "logits.shape = torch.Size([64, 10])"]}
//! ```
//!
//! A condition on a device tensor waits for the device, in async mode too.

use super::{Activity, Command, Target, Tool, WorkFile, common, inject};
use crate::capture::Capture;
use crate::finding::Finding;
use crate::host::Need;

const FILE: &str = "breakpoints.json";
const CLIENT: WorkFile = WorkFile { name: "breakpoint.py", text: include_str!("inject/breakpoint.py") };

/// See the module.
pub(super) struct Breakpoint;

impl Tool for Breakpoint {
    fn id(&self) -> &'static str {
        "breakpoint"
    }

    fn summary(&self) -> &'static str {
        "conditional breakpoints of the scenario, set through debugpy"
    }

    fn needs(&self) -> &'static [Need] {
        &[Need::Torch, Need::Debugpy]
    }

    fn wants_file(&self) -> Option<&'static str> {
        Some(FILE)
    }

    fn command(&self, target: &Target) -> Command {
        let mut command = common::python_command(target);
        // python client program args: the client starts the program, and ends as it ends.
        command.argv.insert(1, format!("{}/{}", target.work, CLIENT.name));
        command.env.insert(inject::FOLDER.into(), target.work.clone());
        command.files.push(CLIENT);
        inject::collect(&mut command);
        command
    }

    fn parse(&self, capture: &Capture) -> Vec<Finding> {
        inject::spoken(capture)
    }

    fn activity(&self, capture: &Capture, findings: &[Finding]) -> Activity {
        inject::activity_of(capture, "debugpy ").and(common::mode_activity(capture, findings))
    }
}
#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const LABEL: &[u8] = br#"{"pid": 28034, "message": "stopped before this line: labels.max() >= logits.shape[1]", "python": [{"file": "/p/train.py", "line": 63, "function": "<module>"}, {"file": "/p/train.py", "line": 58, "function": "main"}, {"file": "/p/train.py", "line": 43, "function": "train_step"}], "values": ["labels.max().item() = 10", "(labels >= logits.shape[1]).nonzero().flatten().tolist() = [17]", "logits.shape = torch.Size([64, 10])"], "error_type": null, "module": null, "note": false}
"#;

    const STREAM: &[u8] = br#"{"pid": 28034, "message": "stopped before this line: ids.max() >= len(self.table)", "python": [{"file": "/p/rank.py", "line": 66, "function": "<module>"}, {"file": "/p/rank.py", "line": 60, "function": "main"}, {"file": "/p/rank.py", "line": 35, "function": "start"}], "values": ["ids.max().item() = 9000", "ids.argmax().item() = 1103"], "error_type": null, "module": null, "note": false}
"#;

    #[test]
    fn real_reports_name_the_line_and_the_program_is_context() {
        testing::check_reports(&Breakpoint, LABEL, "train.py", 43);
        testing::check_reports(&Breakpoint, STREAM, "rank.py", 35);
    }

    #[test]
    fn without_its_own_word_it_was_not_on() {
        testing::check_word(&Breakpoint, "debugpy 1.8.22: 1 of 1 breakpoints verified (train.py:43)");
    }
}
