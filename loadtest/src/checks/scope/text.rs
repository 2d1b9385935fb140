//! How a request spells texts.

/// A text as a part of a path or query: what must be is percent-encoded, and at random something else.
pub(super) fn encoded(text: &str, rng: &mut fastrand::Rng) -> String {
    let mut encoded = String::with_capacity(3 * text.len());
    for byte in text.bytes() {
        let is_plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        if is_plain && rng.u8(..10) > 0 {
            encoded.push(char::from(byte));
        } else if rng.bool() {
            encoded += &format!("%{byte:02X}");
        } else {
            encoded += &format!("%{byte:02x}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_texts_have_plain_characters_alone() {
        let mut rng = fastrand::Rng::with_seed(1);
        for number in 0..100 {
            let text = encoded(&format!("é/{number} %,"), &mut rng);
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte);
            assert!(text.bytes().all(is_plain), "{text}");
        }
    }
}
