//! Writes strings of JSON as PostgreSQL's `escape_json` does.

/// The letter after the backslash for each byte: 0 for bytes that are not escaped, `u` for those without a letter of
/// their own.
const ESCAPES: [u8; 256] = {
    let mut escapes = [0; 256];
    let mut byte = 0;
    while byte < 0x20 {
        escapes[byte] = b'u';
        byte += 1;
    }
    escapes[0x08] = b'b';
    escapes[0x09] = b't';
    escapes[0x0a] = b'n';
    escapes[0x0c] = b'f';
    escapes[0x0d] = b'r';
    escapes[b'"' as usize] = b'"';
    escapes[b'\\' as usize] = b'\\';
    escapes
};

const HEXADECIMAL: &[u8; 16] = b"0123456789abcdef";

/// Writes `text` in quotes.
pub(in crate::resource) fn write_text(text: &[u8], out: &mut Vec<u8>) {
    out.reserve(text.len() + 2);
    out.push(b'"');
    let mut plain = 0;
    for (place, &byte) in text.iter().enumerate() {
        let escape = ESCAPES[usize::from(byte)];
        if escape == 0 {
            continue;
        }
        out.extend_from_slice(&text[plain..place]);
        plain = place + 1;
        out.extend_from_slice(&[b'\\', escape]);
        if escape == b'u' {
            out.extend_from_slice(b"00");
            write_hexadecimal(byte, out);
        }
    }
    out.extend_from_slice(&text[plain..]);
    out.push(b'"');
}

/// Two digits, in lower case.
pub(super) fn write_hexadecimal(byte: u8, out: &mut Vec<u8>) {
    out.push(HEXADECIMAL[usize::from(byte >> 4)]);
    out.push(HEXADECIMAL[usize::from(byte & 15)]);
}
