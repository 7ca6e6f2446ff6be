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
                    let objection = tool.objection(*mode, selection.device).map(|why| format!("makes no sense: {why}"));
                    let skip = objection.or_else(|| obstacle(scenario, *tool, selection.device, host?));
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

/// The first need that is not met.
pub(crate) fn obstacle(scenario: &Scenario, tool: &dyn Tool, device: Device, host: &Host) -> Option<String> {
    if let Err(missing) = &host.python {
        return Some(format!("no Python: {missing}"));
    }
    let device = tool.device(device);
    if device == Device::Cpu && scenario.cpu.is_none() {
        return Some("the scenario has no CPU behaviour: its fault needs a GPU".into());
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
        let all = plan(&scenarios, &selection(), Some(&host()));
        assert_eq!(all.len(), 2 * 2 * tool::ALL.len());
        assert!(all.iter().all(|p| p.skip.is_some()), "{all:?}");
        // Other tools may have objections of their own.
        let selection = || Selection { tools: vec![tool::find("bare").unwrap()], ..selection() };
        let all = plan(&scenarios, &selection(), Some(&host()));
        assert!(all.iter().all(|p| p.skip.as_deref() == Some("no GPU: no driver (mend)")), "{all:?}");
        let cpu = plan(&scenarios, &Selection { device: Device::Cpu, ..selection() }, Some(&host()));
        assert!(cpu.iter().all(|p| p.skip.as_deref().is_some_and(|s| s.contains("no CPU behaviour"))), "{cpu:?}");
        assert!(plan(&scenarios, &selection(), None).iter().all(|p| p.skip.is_none()));
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
