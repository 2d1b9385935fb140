//! The documents that a request may read or write.

use crate::auth::{Access, Principal, Right};
use crate::documents::Scope;
use crate::resource::{Owner, ResourceId};

/// The documents of the resource `id` with this `owner` on which `principal` has `right`; `None`: a client without
/// credentials.
#[inline]
pub(super) fn scope_of<'p>(
    principal: Option<&'p Principal>,
    id: ResourceId,
    owner: Option<&Owner>,
    right: Right,
) -> Scope<'p> {
    // Without an owner, the right was all that was to be checked.
    let Some(owner) = owner else {
        return Scope::All;
    };
    let access = principal.map(|principal| (principal, principal.access(id, right)));
    match access {
        Some((_, Access::All)) => Scope::All,
        Some((principal, Access::Own)) => {
            let claim = principal.claim(&owner.claim);
            Scope::Own(claim.and_then(|claim| owner.claimed(claim)))
        }
        Some((_, Access::None)) | None => Scope::Own(None),
    }
}
