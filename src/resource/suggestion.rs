//! Suggestions for mistyped names.

/// The one of `known` that `name` is probably a misspelling of; upper and lower case count as the same.
///
/// Up to a third of the letters of the known name may be wrong, missing, extra or swapped.
pub(crate) fn nearest<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let name = name.to_lowercase();
    let distances = known.into_iter().map(|candidate| {
        let distance = strsim::damerau_levenshtein(&name, &candidate.to_lowercase());
        (distance, candidate)
    });
    let (distance, nearest) = distances.min()?;
    (distance <= nearest.chars().count() / 3).then_some(nearest)
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
        // Two letters of five, and one of two.
        assert_eq!(nearest("axmix", known), None);
        assert_eq!(nearest("ix", ["id", "no"]), None);
    }
}
