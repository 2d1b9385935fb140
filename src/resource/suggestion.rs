//! Suggestions for mistyped names.

/// The one of `known` that `name` is probably a misspelling of; upper and lower case count as the same.
///
/// Up to two letters may be wrong, missing, extra or swapped, and in a long name up to a third of them.
pub(crate) fn nearest<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let name = name.to_lowercase();
    let distances = known.into_iter().map(|candidate| {
        let distance = strsim::damerau_levenshtein(&name, &candidate.to_lowercase());
        (distance, candidate)
    });
    let (distance, nearest) = distances.min()?;
    (distance <= 2.max(nearest.chars().count() / 3)).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_find_their_word_and_others_none() {
        let known = ["listen", "admin", "workers"];
        assert_eq!(nearest("lisen", known), Some("listen"));
        assert_eq!(nearest("worker", known), Some("workers"));
        assert_eq!(nearest("xyz", known), None);
    }
}
