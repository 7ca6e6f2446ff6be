//! Which cases a run has, and which of them cannot run here, with the reason. Pure.

use crate::case::{CaseId, Device, Mode, Partition, Subject};
use crate::host::Host;
use crate::scenario::Scenario;
use crate::tool::Tool;

/// What the user asked for.
#[derive(Clone)]
pub struct Selection {
    /// In the order of reports.
    pub tools: Vec<&'static dyn Tool>,
    /// Async, sync or both.
    pub modes: Vec<Mode>,
    /// Where the tensors live.
    pub device: Device,
    /// The fixed programs too?
    pub twins: bool,
    /// Only this part of the plan.
    pub partition: Option<Partition>,
}

/// A case of the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// Which.
    pub case: CaseId,
    /// Why it cannot run here, and how to mend that.
    pub skip: Option<String>,
}

/// Every case of the selection, scenario by scenario. `host` is `None` for a replay, which needs nothing of the
/// machine.
pub fn plan(scenarios: &[Scenario], selection: &Selection, host: Option<&Host>) -> Vec<Planned> {
    let mut planned = Vec::new();
    for scenario in scenarios {
        for subject in [Subject::Program, Subject::Twin] {
            if subject == Subject::Twin && !selection.twins {
                continue;
            }
            for tool in &selection.tools {
                for mode in &selection.modes {
                    let case =
                        CaseId { scenario: scenario.id.clone(), subject, tool: tool.id().to_string(), mode: *mode };
                    let skip = obstacle(scenario, *tool, *mode, selection.device, host);
                    planned.push(Planned { case, skip });
                }
            }
        }
    }
    if let Some(Partition { index, count }) = selection.partition {
        // Round robin: the expensive cases of one scenario are spread over the runners.
        planned = planned.into_iter().enumerate().filter(|(n, _)| n % count == index - 1).map(|(_, p)| p).collect();
    }
    planned
}

/// Why a case cannot run: first what no machine could mend, then what this one lacks.
pub(crate) fn obstacle(
    scenario: &Scenario,
    tool: &dyn Tool,
    mode: Mode,
    device: Device,
    host: Option<&Host>,
) -> Option<String> {
    if let Some(why) = tool.objection(mode, device) {
        return Some(format!("makes no sense: {why}"));
    }
    if let Some(file) = tool.wants_file().filter(|file| !scenario.files.contains(*file)) {
        return Some(format!("the scenario has no {file}, which tells {} what to do", tool.id()));
    }
    let device = tool.device(device);
    if device == Device::Cpu && scenario.cpu.is_none() {
        return Some("the scenario has no CPU behaviour: its fault needs a GPU".into());
    }
    let host = host?;
    if let Err(missing) = &host.python {
        return Some(format!("no Python: {missing}"));
    }
    let needs = scenario.needs.iter().chain(tool.needs());
    // On the CPU a scenario with CPU behaviour does without its GPU.
    needs
        .filter(|need| !(device == Device::Cpu && **need == crate::host::Need::Gpu))
        .find_map(|need| need.check(host, device).err())
}

/// Puts cases into the order of [`plan`], with the scenarios in this order.
pub(crate) fn sort(planned: &mut [Planned], scenarios: &[String]) {
    let tools: Vec<&str> = crate::tool::ALL.iter().map(|t| t.id()).collect();
    planned.sort_by_key(|Planned { case, .. }| {
        let scenario = scenarios.iter().position(|id| *id == case.scenario);
        let tool = tools.iter().position(|id| *id == case.tool);
        (scenario, case.subject, tool, case.mode)
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Missing;
    use crate::{testing, tool};

    fn host() -> Host {
        let missing = |why: &str| Missing { why: why.into(), mend: "mend".into() };
        Host {
            os: "Linux".into(),
            gpus: Err(missing("no driver")),
            driver: Err(missing("x")),
            cuda: Err(missing("x")),
            python: Ok(crate::host::Python {
                executable: "/usr/bin/python3".into(),
                version: "3.12.3".into(),
                folders: crate::host::PythonFolders::default(),
            }),
            torch: Ok(crate::host::Torch { version: "2.6.0".into(), cuda: None }),
            docker: Err(missing("x")),
            programs: Vec::new(),
        }
    }

    fn selection() -> Selection {
        Selection {
            tools: tool::ALL.to_vec(),
            modes: vec![Mode::Async, Mode::Sync],
            device: Device::Cuda,
            twins: true,
            partition: None,
        }
    }

    #[test]
    fn every_skip_says_why() {
        let scenarios = [testing::scenario()];
        let two = |device| Selection { tools: tool::ALL[..2].to_vec(), device, ..selection() };
        let all = plan(&scenarios, &two(Device::Cuda), Some(&host()));
        assert_eq!(all.len(), 2 * 2 * 2);
        assert!(all.iter().all(|p| p.skip.as_deref() == Some("no GPU: no driver (mend)")), "{all:?}");
        let cpu = plan(&scenarios, &two(Device::Cpu), Some(&host()));
        assert!(cpu.iter().all(|p| p.skip.as_deref().is_some_and(|s| s.contains("no CPU behaviour"))), "{cpu:?}");
        assert!(plan(&scenarios, &two(Device::Cuda), None).iter().all(|p| p.skip.is_none()));
    }

    #[test]
    fn on_a_machine_without_anything_no_tool_runs() {
        let all = plan(&[testing::scenario()], &selection(), Some(&host()));
        assert_eq!(all.len(), 2 * 2 * tool::ALL.len());
        assert!(all.iter().all(|p| p.skip.as_deref().is_some_and(|s| !s.is_empty())), "{all:?}");
    }

    #[test]
    fn what_no_machine_could_mend_is_stated_for_a_replay_too() {
        let all = plan(&[testing::scenario()], &selection(), None);
        let reason = |tool: &str, mode: Mode| {
            let planned = all.iter().find(|p| p.case.tool == tool && p.case.mode == mode);
            planned.and_then(|p| p.skip.clone()).unwrap_or_default()
        };
        assert!(reason("cpu-rerun", Mode::Sync).starts_with("makes no sense: "), "{all:?}");
        assert!(reason("cpu-rerun", Mode::Async).contains("no CPU behaviour"), "{all:?}");
        assert!(reason("breakpoint", Mode::Async).contains("has no breakpoints.json"), "{all:?}");
        assert_eq!(reason("bare", Mode::Async), "");
    }

    #[test]
    fn a_tool_without_its_file_is_skipped() {
        let tool = tool::find("breakpoint").expect("it is in ALL");
        let mut scenario = testing::scenario();
        let skip = obstacle(&scenario, tool, Mode::Async, Device::Cuda, Some(&host()));
        assert!(skip.as_deref().is_some_and(|s| s.starts_with("the scenario has no breakpoints.json")), "{skip:?}");
        scenario.files.insert("breakpoints.json".into());
        assert_eq!(
            obstacle(&scenario, tool, Mode::Async, Device::Cuda, Some(&host())).as_deref(),
            Some("no GPU: no driver (mend)")
        );
    }

    #[test]
    fn partitions_cover_the_plan_once() {
        let scenarios = [testing::scenario()];
        let whole = plan(&scenarios, &selection(), None);
        let mut parts = Vec::new();
        for index in 1..=3 {
            let partition = Some(Partition { index, count: 3 });
            parts.extend(plan(&scenarios, &Selection { partition, ..selection() }, None));
        }
        parts.sort_by(|a, b| a.case.cmp(&b.case));
        let mut sorted = whole;
        sorted.sort_by(|a, b| a.case.cmp(&b.case));
        assert_eq!(parts, sorted);
    }
}
