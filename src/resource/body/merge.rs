//! JSON merge patches (RFC 7396), on text, so that numbers keep every digit.

use std::collections::HashMap;

use crate::resource::body::parse::{Json, JsonNode, Scratch, with_json};
use crate::resource::body::{BodyError, MISMATCHES_MAX, Mismatch, Mismatches};
use crate::resource::writable::{MemberKind, Writable};

/// Applies `patch` to `document`. [`rows_of`](super::rows_of) has to check the result. Adds the members to `refused` that a
/// patch can't have.
///
/// Null as the value of a column sets the column to null, not to its default. Null as the value of children removes all
/// of them.
/// # Errors
/// [`BodyError`].
pub fn merge_patch(
    writable: &Writable,
    document: &[u8],
    patch: &[u8],
    scratch: &mut Scratch,
    refused: &mut Vec<Mismatch>,
) -> Result<Vec<u8>, BodyError> {
    let mut mismatches = Mismatches::default();
    let mut merged = Vec::with_capacity(document.len() + patch.len());
    let read = with_json(document, &mut Scratch::default(), |document| {
        with_json(patch, scratch, |patch| {
            check(writable, patch, &mut mismatches);
            let keeps_null = |name: &str| is_column(writable, name);
            merge(Some(document), patch, &keeps_null, &mut merged);
        })
    });
    // A value of a `json` column may nest deeper than a body may, or have half of a surrogate pair.
    read.map_err(|why| BodyError::Malformed(why).of_stored())?
        .map_err(BodyError::Malformed)?;
    *refused = mismatches.found;
    Ok(merged)
}

/// Joins the members that a patch can't have with what is wrong in its result.
///
/// # Errors
/// [`BodyError`] if there is any of both.
pub fn join_refused(refused: Vec<Mismatch>, read: Result<(), BodyError>) -> Result<(), BodyError> {
    let mut all = refused;
    match read {
        Ok(()) if all.is_empty() => return Ok(()),
        Err(BodyError::Mismatches(found)) => {
            let is_new =
                |mismatch: &Mismatch| all.iter().all(|known| known.pointer != mismatch.pointer);
            let new: Vec<Mismatch> = found.into_iter().filter(is_new).collect();
            all.extend(new);
            all.truncate(MISMATCHES_MAX);
        }
        Err(error) if all.is_empty() => return Err(error),
        _ => {}
    }
    Err(BodyError::Mismatches(all))
}

/// Adds the members that a patch must not have. The values of other members are checked later, as parts of the
/// document.
fn check(writable: &Writable, patch: JsonNode<'_>, mismatches: &mut Mismatches) {
    let (Json::Object(_), Some(root)) = (patch.json(), writable.levels.first()) else {
        return mismatches.add("must be an object");
    };
    let mut seen = vec![false; root.members.len()];
    for (name, _) in patch.members() {
        let name = name.as_str();
        let at = root.member_at(name, 0);
        let refusal = match at.map(|at| (&root.members[at].kind, &mut seen[at])) {
            None => "is not a member of this object",
            Some((_, true)) => "is given twice",
            Some((MemberKind::Lookup, _)) => "is read-only, and can't be patched",
            Some((MemberKind::Column(at), _)) if !root.columns[*at].is_inserted() => {
                root.columns[*at].read_only().unwrap_or("is read-only")
            }
            Some((_, seen)) => {
                *seen = true;
                continue;
            }
        };
        mismatches.within(name, |mismatches| mismatches.add(refusal));
    }
}

fn is_column(writable: &Writable, name: &str) -> bool {
    writable.levels.first().is_some_and(|root| {
        let at = root.member_at(name, 0);
        at.is_some_and(|at| matches!(root.members[at].kind, MemberKind::Column(_)))
    })
}

/// Writes what `patch` makes of `target` (RFC 7396, section 2). Null removes a member of this object, unless
/// `keeps_null` says that null is a value of the member.
///
/// A stored value of type `json` may have several members with one name, of which readers use the last. In an object that
/// the patch changes, the others are left out. An object that it does not change keeps its text. Returns whether it does.
fn merge(
    target: Option<JsonNode<'_>>,
    patch: JsonNode<'_>,
    keeps_null: &dyn Fn(&str) -> bool,
    out: &mut Vec<u8>,
) -> bool {
    let Json::Object(_) = patch.json() else {
        out.extend_from_slice(patch.text());
        return target.is_none_or(|target| target.text() != patch.text());
    };
    let object = target.filter(|target| matches!(target.json(), Json::Object(_)));
    let mut is_changed = object.is_none();
    let start = out.len();
    // Of several members with one name the last counts.
    let changes = patch.members().map(|(name, value)| (name.as_str(), value));
    let mut changes: HashMap<&str, JsonNode<'_>> = changes.collect();
    let is_kept =
        |name: &str, change: JsonNode<'_>| change.json() != Json::Null || keeps_null(name);
    out.push(b'{');
    let begin = out.len();
    let write_name = |name: JsonNode<'_>, out: &mut Vec<u8>| {
        if out.len() > begin {
            out.push(b',');
        }
        out.extend_from_slice(name.text());
        out.push(b':');
    };
    let members = || {
        target
            .iter()
            .flat_map(|target| target.members())
            .enumerate()
    };
    let last: HashMap<&str, usize> = members()
        .map(|(place, (name, _))| (name.as_str(), place))
        .collect();
    for (place, (name, value)) in members() {
        if last.get(name.as_str()) != Some(&place) {
            continue;
        }
        match changes.remove(name.as_str()) {
            None => {
                write_name(name, out);
                out.extend_from_slice(value.text());
            }
            Some(change) if is_kept(name.as_str(), change) => {
                write_name(name, out);
                is_changed |= merge(Some(value), change, &|_| false, out);
            }
            Some(_) => is_changed = true,
        }
    }
    // The target lacks the others, which follow in the order of the patch.
    for (name, _) in patch.members() {
        if let Some(change) = changes.remove(name.as_str())
            && is_kept(name.as_str(), change)
        {
            write_name(name, out);
            is_changed |= merge(None, change, &|_| false, out);
        }
    }
    out.push(b'}');
    if let (false, Some(object)) = (is_changed, object) {
        out.truncate(start);
        out.extend_from_slice(object.text());
    }
    is_changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::body::testing;

    fn merged(document: &str, patch: &str) -> Result<String, Vec<Mismatch>> {
        let writable = testing::depts();
        let mut scratch = Scratch::default();
        let mut refused = Vec::new();
        let merged = merge_patch(
            &writable,
            document.as_bytes(),
            patch.as_bytes(),
            &mut scratch,
            &mut refused,
        );
        let merged = String::from_utf8(merged.unwrap()).unwrap();
        if refused.is_empty() {
            Ok(merged)
        } else {
            Err(refused)
        }
    }

    /// The examples of RFC 7396, appendix A, in a `jsonb` column.
    #[test]
    fn a_stored_value_that_nests_too_deeply_is_not_blamed_on_the_body() {
        let writable = testing::depts();
        let deep = "[".repeat(300) + &"]".repeat(300);
        let merge = |document: &str, patch: &str| {
            let mut scratch = Scratch::default();
            merge_patch(
                &writable,
                document.as_bytes(),
                patch.as_bytes(),
                &mut scratch,
                &mut Vec::new(),
            )
        };
        let text = format!("{{\"data\":{deep}}}");
        let stored = merge(&text, "{}").unwrap_err().to_string();
        assert!(stored.starts_with("the stored document nests"), "{stored}");
        let sent = merge("{}", &text).unwrap_err().to_string();
        assert!(sent.starts_with("the body nests"), "{sent}");
    }

    #[test]
    fn patches_are_merged_as_in_rfc_7396() {
        for (target, patch, result) in [
            (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"a":null}"#, "{}"),
            (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
            (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"c"}"#, r#"{"a":["b"]}"#, r#"{"a":["b"]}"#),
            (
                r#"{"a":{"b":"c"}}"#,
                r#"{"a":{"b":"d","c":null}}"#,
                r#"{"a":{"b":"d"}}"#,
            ),
            (r#"{"a":[{"b":"c"}]}"#, r#"{"a":[1]}"#, r#"{"a":[1]}"#),
            (r#"["a","b"]"#, r#"["c","d"]"#, r#"["c","d"]"#),
            (r#"{"a":"b"}"#, r#"["c"]"#, r#"["c"]"#),
            (r#"{"a":"foo"}"#, "null", "null"),
            (r#"{"a":"foo"}"#, r#""bar""#, r#""bar""#),
            (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"e":null,"a":1}"#),
            ("[1,2]", r#"{"a":"b","c":null}"#, r#"{"a":"b"}"#),
            ("{}", r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
            // Digits and escapes stay as they are, and the last of several counts.
            (
                r#"{"\u0061":1.50,"b":1e400}"#,
                r#"{"c":0.10,"c":0.20}"#,
                r#"{"\u0061":1.50,"b":1e400,"c":0.20}"#,
            ),
            // Also of members that are stored; an object that is not changed stays as it is.
            (
                r#"{"a":{"x":1},"b":2,"\u0061":{"y":2},"b":3}"#,
                r#"{"a":{"z":3}}"#,
                r#"{"\u0061":{"y":2,"z":3},"b":3}"#,
            ),
            (r#"{"a":1,"b":2,"a":3}"#, r#"{"a":null}"#, r#"{"b":2}"#),
            (r#"{"a": 1,"a":2}"#, "{}", r#"{"a": 1,"a":2}"#),
            (
                r#"{"a" : {"b": [1, 2], "c": null}, "d": 1}"#,
                r#"{"a":{"b":[1, 2],"e":null},"d":1}"#,
                r#"{"a" : {"b": [1, 2], "c": null}, "d": 1}"#,
            ),
            (
                r#"{"a" : {"b": 1}, "c": {"d": 2}}"#,
                r#"{"a":{"b":1},"c":{"d":3}}"#,
                r#"{"a":{"b": 1},"c":{"d":3}}"#,
            ),
        ] {
            let document = format!(r#"{{"no":1,"data":{target},"loc":"x"}}"#);
            let result = format!(r#"{{"no":1,"data":{result},"loc":"x"}}"#);
            let patch = format!(r#"{{"data":{patch}}}"#);
            assert_eq!(merged(&document, &patch), Ok(result), "{document} {patch}");
        }
    }

    #[test]
    fn null_is_a_columns_value_and_arrays_are_replaced() {
        let document = r#"{"no":1,"a/b":"x","loc":"y","emps":[{"empno":1,"sal":2.50}]}"#;
        assert_eq!(
            merged(document, r#" { "loc" : null , "emps" : null } "#),
            Ok(r#"{"no":1,"a/b":"x","loc":null}"#.to_owned())
        );
        assert_eq!(
            merged(document, r#"{"emps":[{"sal":null}]}"#),
            Ok(r#"{"no":1,"a/b":"x","loc":"y","emps":[{"sal":null}]}"#.to_owned())
        );
        assert_eq!(merged(document, "{}"), Ok(document.to_owned()));
    }

    #[test]
    fn all_that_is_wrong_is_told_once() {
        let mismatch = |pointer: &str| Mismatch {
            pointer: pointer.to_owned(),
            message: String::new(),
        };
        let refused = || vec![mismatch("/a"), mismatch("/b")];
        let found = || Err(BodyError::Mismatches(vec![mismatch("/b"), mismatch("/c")]));
        let joined = |refused: Vec<Mismatch>, read| match join_refused(refused, read) {
            Err(BodyError::Mismatches(all)) => {
                all.into_iter().map(|mismatch| mismatch.pointer).collect()
            }
            other => vec![format!("{other:?}")],
        };
        assert_eq!(joined(refused(), found()), ["/a", "/b", "/c"]);
        assert_eq!(joined(refused(), Ok(())), ["/a", "/b"]);
        assert_eq!(joined(Vec::new(), found()), ["/b", "/c"]);
        assert!(join_refused(Vec::new(), Ok(())).is_ok());
    }

    #[test]
    fn read_only_members_cannot_be_patched() {
        let mismatches = merged(
            "{}",
            r#"{"site":null,"upper":"x","z":null,"loc":1,"loc":2}"#,
        );
        let messages: Vec<String> = mismatches
            .unwrap_err()
            .into_iter()
            .map(|mismatch| format!("{} {}", mismatch.pointer, mismatch.message))
            .collect();
        assert_eq!(
            messages,
            [
                "/site is read-only, and can't be patched",
                "/upper is read-only, and can't be patched",
                "/z is not a member of this object",
                "/loc is given twice",
            ]
        );
        assert_eq!(
            merged("{}", "[]").unwrap_err()[0].message,
            "must be an object"
        );
    }
}
