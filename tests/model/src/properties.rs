//! The properties that must hold in every state, and those that must hold in at least one.

use stateright::Property;

use crate::{Bounds, Order, PassStep, Phase, Protocol, Scene, Stage, State};

/// The property that larder promises.
pub(crate) const NO_STALE_ANSWER: &str = "no answer is stale";

pub(crate) fn all(protocol: &Protocol) -> Vec<Property<Protocol>> {
    let mut properties = vec![
        Property::always(NO_STALE_ANSWER, |_, state: &State| !state.stale),
        Property::always("memory reflects the position", |_, state: &State| {
            reflects(state, state.memory)
        }),
        Property::sometimes("memory answers", |_, state: &State| {
            state.memory.is_some() && is_some_at(state, |phase| phase == Phase::Memory)
        }),
        Property::sometimes("a fill is refused", |_, state: &State| {
            let refused =
                |load: &crate::Load| load.stage == Stage::Sent && load.version != state.version;
            state.loads.iter().any(refused)
        }),
    ];
    if protocol.scene == Scene::MovableParent {
        properties.push(Property::sometimes(
            "a pass maps the parent",
            |_, state: &State| {
                let pass = state.pass.filter(|pass| pass.changed);
                let retitled = |txn: &crate::state::Open| txn.txn == crate::Txn::Retitle;
                let log = &state.database.committed[usize::from(state.position)..];
                pass.is_some() && !log.is_empty() && log.iter().all(retitled)
            },
        ));
    }
    properties.extend(of_bounds(&protocol.bounds));
    properties
}

fn of_bounds(bounds: &Bounds) -> Vec<Property<Protocol>> {
    let mut properties = Vec::new();
    if bounds.requests > 1 {
        properties.push(Property::sometimes(
            "a load is joined",
            |_, state: &State| {
                let waits = |load| {
                    let waiting = |request: &&crate::Request| request.phase == Phase::Waiting(load);
                    state.requests.iter().filter(waiting).count()
                };
                (0..state.loads.len()).any(|load| waits(load) > 1)
            },
        ));
    }
    if bounds.disk {
        properties.extend([
            Property::always(
                "a clean stripe's entry reflects the position",
                |_, state: &State| {
                    let clean = state.disk_on && state.clean == state.version.generation;
                    !clean || reflects(state, state.disk.content)
                },
            ),
            Property::always("a mark implies its drops", |_, state: &State| {
                let (content, mark) = (state.disk.content, state.disk.mark);
                let (Some(content), Some(mark)) = (content, mark) else {
                    return true;
                };
                state.database.is_true_since(content, mark)
            }),
            Property::sometimes("disk answers", |_, state: &State| {
                is_some_at(state, |phase| matches!(phase, Phase::Found(..)))
            }),
            Property::sometimes(
                "a document is overtaken in the queue",
                |_, state: &State| {
                    let put = |order: &Order| matches!(order, Order::Put(..));
                    let raises = state.pass.is_some_and(|pass| pass.step == PassStep::Raise);
                    raises && state.queue.iter().any(put)
                },
            ),
        ]);
    }
    if bounds.disk && bounds.crashes > 0 {
        properties.push(Property::sometimes(
            "disk answers after a crash",
            |_, state: &State| {
                state.crashes > 0 && is_some_at(state, |phase| matches!(phase, Phase::Found(..)))
            },
        ));
    }
    properties
}

fn is_some_at(state: &State, is: impl Fn(Phase) -> bool) -> bool {
    state.requests.iter().any(|request| is(request.phase))
}

/// Whether a tier holds the document as it is in the position or later.
fn reflects(state: &State, content: Option<u8>) -> bool {
    // After a crash, until the feed follows again, the position is that of the earlier run.
    content.is_none_or(|content| state.database.is_true_since(content, state.position))
}
