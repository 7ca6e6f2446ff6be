//! For CI systems: `JUnit` XML, one suite a scenario, one test case a case. As expected is a success, a verdict that
//! differs is a failure, and what the harness or the machine broke is an error.

use std::time::Duration;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::deciding;
use crate::results::{CaseResult, Run, Standing};

pub(super) fn render(run: &Run) -> String {
    let mut report = Report::new("faultlab");
    for scenario in &run.scenarios {
        let mut suite = TestSuite::new(scenario.id.as_str());
        suite.add_property(("stack".to_string(), run.settings.stack.to_string()));
        suite.add_property(("backend".to_string(), run.settings.backend.clone()));
        for case in run.cases.iter().filter(|c| c.case.scenario == scenario.id) {
            suite.add_test_case(test_case(case));
        }
        for case in run.unfinished.iter().filter(|c| c.scenario == scenario.id) {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
            status.set_type("unfinished").set_message("the run was interrupted before this case came to an end");
            let mut test = TestCase::new(case.to_string(), status);
            test.set_classname(scenario.id.as_str());
            suite.add_test_case(test);
        }
        report.add_test_suite(suite);
    }
    // The only errors are those of the writer, and a string has none.
    report.to_string().unwrap_or_default()
}

fn test_case(case: &CaseResult) -> TestCase {
    let reason = case.outcome.reason().unwrap_or_default();
    let label = case.outcome.label();
    let status = match case.standing() {
        Standing::Met => TestCaseStatus::success(),
        Standing::Skipped => {
            let mut status = TestCaseStatus::skipped();
            status.set_message(reason.as_str());
            status
        }
        standing => {
            let kind = if standing == Standing::Infra { NonSuccessKind::Error } else { NonSuccessKind::Failure };
            let mut status = TestCaseStatus::non_success(kind);
            let message = match case.expected {
                Some(claim) => format!("{label}, expected {claim}: {reason}"),
                None => format!("{label}: {reason}"),
            };
            status.set_type(label.as_str()).set_message(message);
            if let Some(finding) = deciding(case) {
                status.set_description(finding.message.as_str());
            }
            status
        }
    };
    let mut test = TestCase::new(case.case.to_string(), status);
    test.set_classname(case.case.scenario.as_str());
    test.set_system_out(format!("{label}: {reason}"));
    if let Some(process) = &case.process {
        test.set_time(Duration::try_from_secs_f64(process.elapsed_s).unwrap_or_default());
    }
    test
}
