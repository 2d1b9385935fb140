//! The types of columns, and the types that these consist of.

use std::collections::HashMap;

use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};

use crate::resource::value::{CatalogueType, TypeForm};
use crate::source::SourceError;
use crate::source::catalogue::{character, oid};

/// The release whose `"char"` has an octal form (charin and charout in char.c).
const OCTAL_SINCE: u32 = 150_000;

/// Reads the types of the columns of the tables `table_oids`, and the types that these consist of.
pub(super) async fn read_types(
    connection: &mut PgConnection,
    table_oids: &[i64],
) -> Result<HashMap<u32, CatalogueType>, SourceError> {
    let octal = connection.server_version_num().unwrap_or_default() >= OCTAL_SINCE;
    // int2vector and oidvector have elements, but not the text form of an array; only box has another separator. `to_json`
    // makes arrays of them, and what the cast to json says of other types that are not built in (json.c,
    // `json_categorize_type`).
    let rows = sqlx::query(
        "with recursive used (oid) as ( \
           select atttypid from pg_attribute where attrelid::int8 = any($1) and attnum > 0 and not attisdropped \
           union select part.oid from used join pg_type t on t.oid = used.oid cross join lateral ( \
             select t.typbasetype where t.typtype = 'd' \
             union all select t.typelem where t.typcategory = 'A' \
             union all select r.rngsubtype from pg_range r where t.oid in (r.rngtypid, r.rngmultitypid) \
             union all select a.atttypid from pg_attribute a \
               where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped) part (oid)) \
         select t.oid::int8 as oid, t.typname::text as name, \
           t.typnamespace = 'pg_catalog'::regnamespace as built_in, \
           case when t.oid in ('int2vector'::regtype, 'oidvector'::regtype) then 'u' \
             when t.typtype = 'b' and t.typcategory = 'A' and e.typdelim = ',' then 'a' \
             when t.typtype = 'b' and t.typcategory = 'A' and e.typdelim <> ',' then 'u' \
             when t.typtype not in ('d', 'c') and t.oid >= 16384 and exists (select from pg_cast c \
               where c.castsource = t.oid and c.casttarget = 'json'::regtype and c.castmethod = 'f') then 'u' \
             when t.oid = '\"char\"'::regtype then 'y' \
             else t.typtype end::text as kind, \
           t.typbasetype::int8 as base, t.typtypmod as modifier, t.typelem::int8 as element, \
           (select r.rngsubtype::int8 from pg_range r where t.oid in (r.rngtypid, r.rngmultitypid)) as subtype, \
           array(select enumlabel::text from pg_enum where enumtypid = t.oid order by enumsortorder) as labels, \
           array(select attname::text from pg_attribute where t.typtype = 'c' and attrelid = t.typrelid \
             and attnum > 0 and not attisdropped order by attnum) as attribute_names, \
           array(select atttypid::int8 from pg_attribute where t.typtype = 'c' and attrelid = t.typrelid \
             and attnum > 0 and not attisdropped order by attnum) as attribute_types, \
           array(select atttypmod from pg_attribute where t.typtype = 'c' and attrelid = t.typrelid \
             and attnum > 0 and not attisdropped order by attnum) as attribute_modifiers \
         from used join pg_type t on t.oid = used.oid left join pg_type e on e.oid = t.typelem",
    )
    .bind(table_oids)
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            let found = CatalogueType {
                name: row.try_get("name")?,
                built_in: row.try_get("built_in")?,
                form: form(row, octal)?,
            };
            Ok((oid(row, "oid")?, found))
        })
        .collect()
}

fn form(row: &PgRow, octal: bool) -> Result<TypeForm, SourceError> {
    Ok(match character(row, "kind")? {
        'd' => TypeForm::Domain {
            base: oid(row, "base")?,
            modifier: row.try_get("modifier")?,
        },
        'a' => TypeForm::Array {
            element: oid(row, "element")?,
        },
        'r' | 'm' => TypeForm::Range {
            subtype: oid(row, "subtype")?,
        },
        'u' => TypeForm::Unwritable,
        'y' => TypeForm::Byte { octal },
        'e' => TypeForm::Enum {
            labels: row.try_get("labels")?,
        },
        'c' => {
            let names: Vec<String> = row.try_get("attribute_names")?;
            let types: Vec<i64> = row.try_get("attribute_types")?;
            let modifiers: Vec<i32> = row.try_get("attribute_modifiers")?;
            let attributes = names.into_iter().zip(types).zip(modifiers);
            let attributes = attributes.map(|((name, oid), modifier)| {
                // An oid is unsigned and of 32 bits; 0 is none.
                (name, u32::try_from(oid).unwrap_or_default(), modifier)
            });
            TypeForm::Composite {
                attributes: attributes.collect(),
            }
        }
        _ => TypeForm::Base,
    })
}
