//! Resources for the tests of what hands them on.

use crate::resource::catalogue::TableName;
use crate::resource::definition::{Place, Tiers};
use crate::resource::document::DocumentTemplate;
use crate::resource::kept::KeptColumns;
use crate::resource::key::KeyShape;
use crate::resource::proof::ProvedSql;
use crate::resource::{Resource, ResourceId, Row};

/// The only resource of a cache, or the first.
pub(crate) const ITEMS: ResourceId = ResourceId::new(0);

/// A resource that no statement asks for.
pub(crate) fn named(name: &str) -> Resource {
    let table = TableName {
        oid: 1,
        schema: "public".into(),
        name: name.into(),
    };
    let place = Place {
        origin: "test".into(),
        line: 0,
        key: String::new(),
    };
    let root = Row {
        table,
        place: place.clone(),
        condition: None,
        fields: Vec::new(),
        children: Vec::new(),
        lookups: Vec::new(),
    };
    Resource {
        name: name.into(),
        place,
        tiers: Tiers {
            memory: true,
            disk: true,
        },
        uncached: None,
        fingerprint: None,
        type_tables: Vec::new(),
        row_security: None,
        key: KeyShape {
            columns: Vec::new(),
            fields: Vec::new(),
        },
        template: DocumentTemplate::new(&root, &KeptColumns::default()),
        filters: Vec::new(),
        owner: None,
        by: Vec::new(),
        writable: Err("it is only read".into()),
        write_sql: None,
        root,
        documents_sql: ProvedSql::new(""),
        checked_sql: None,
    }
}
