//! The clients that read documents: customers see their own alone.

use testkit::http::Request;

/// A principal that reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Viewer {
    /// Sees all documents.
    Staff,
    /// One of two customers, whose claim is its number.
    Customer(u8),
}

/// The viewers that see a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audience {
    /// The resource has no owner.
    Everyone,
    /// The staff, and the customer of this number if there is one.
    Owner(Option<u8>),
}

impl Viewer {
    pub(crate) const ALL: [Self; 3] = [Self::Staff, Self::Customer(1), Self::Customer(2)];

    /// Its place in [`Viewer::ALL`].
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Staff => 0,
            Self::Customer(number) => usize::from(number),
        }
    }

    /// Its API key.
    pub(crate) fn api_key(self) -> &'static str {
        match self {
            Self::Staff => "staff",
            Self::Customer(1) => "customer1",
            Self::Customer(_) => "customer2",
        }
    }

    /// A request of its for a document.
    pub(crate) fn get(self, path: impl Into<String>) -> Request {
        Request::get(path).with("x-api-key", self.api_key())
    }

    /// The one that reads on the connection with this number: mostly the staff, whose reads show how the tiers answer.
    pub(crate) fn of_connection(number: usize) -> Self {
        // An odd divisor: each larder of two has connections of all.
        match number % 9 {
            0 => Self::Customer(1),
            1 => Self::Customer(2),
            _ => Self::Staff,
        }
    }
}

impl Audience {
    pub(crate) fn has(self, viewer: Viewer) -> bool {
        match (self, viewer) {
            (Self::Everyone, _) | (_, Viewer::Staff) => true,
            (Self::Owner(owner), Viewer::Customer(customer)) => owner == Some(customer),
        }
    }
}

/// An owner: a customer, somebody else, or nobody.
pub(super) fn some_owner(rng: &mut fastrand::Rng) -> Option<u8> {
    let owner = rng.u8(..4);
    (owner > 0).then_some(owner)
}

/// An owner as SQL, and as JSON.
pub(super) fn owner_sql(owner: Option<u8>) -> String {
    owner.map_or("null".to_owned(), |owner| owner.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn customers_see_what_they_own() {
        let has = |audience: Audience| Viewer::ALL.map(|viewer| audience.has(viewer));
        assert_eq!(has(Audience::Everyone), [true; 3]);
        assert_eq!(has(Audience::Owner(None)), [true, false, false]);
        assert_eq!(has(Audience::Owner(Some(2))), [true, false, true]);
        assert_eq!(has(Audience::Owner(Some(3))), [true, false, false]);
    }
}
