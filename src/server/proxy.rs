//! The PROXY protocol, versions 1 and 2: a proxy begins a connection with the address of its client (HAProxy,
//! `proxy-protocol.txt`).
//!
//! No byte beyond the header is read, since TLS or HTTP follows. Parsers in crates take a buffer that may hold both.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncRead, AsyncReadExt};

/// The first bytes of version 2; a header of version 1 is at least as long.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// A header of version 1 with the end of its line.
const LINE_BYTES_MAX: usize = 107;
/// Bytes after the first 16 of a header of version 2: addresses, and what cloud providers add about the connection.
const REST_BYTES_MAX: usize = 2 << 10;
/// Bytes of the client's and the proxy's addresses and ports, for IPv4 and IPv6.
const V4_BYTES: usize = 12;
const V6_BYTES: usize = 36;

/// The client in the header at the beginning of `stream`; `None` if the connection is the proxy's own, or if the header
/// has no IP address.
///
/// # Errors
/// The stream does not begin with a header, or the header is too long.
pub(super) async fn read_client(
    stream: &mut (impl AsyncRead + Unpin),
) -> io::Result<Option<IpAddr>> {
    let mut first = [0; SIGNATURE.len()];
    stream.read_exact(&mut first).await?;
    let client = if first == SIGNATURE {
        read_binary(stream).await?
    } else if first.starts_with(b"PROXY ") {
        read_line(stream, &first).await?
    } else {
        return Err(invalid("the signature is missing"));
    };
    Ok(client.map(|address| address.to_canonical()))
}

/// The rest of version 2.
async fn read_binary(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<IpAddr>> {
    let command = stream.read_u8().await?;
    let family = stream.read_u8().await? >> 4;
    let bytes = usize::from(stream.read_u16().await?);
    if bytes > REST_BYTES_MAX {
        return Err(invalid("the header is too long"));
    }
    let mut rest = vec![0; bytes];
    stream.read_exact(&mut rest).await?;
    match (command, family) {
        // LOCAL: the proxy's own connection, such as a health check.
        (0x20, _) => Ok(None),
        (0x21, 1) if bytes >= V4_BYTES => {
            let address = rest.first_chunk::<4>();
            Ok(address.map(|address| Ipv4Addr::from(*address).into()))
        }
        (0x21, 2) if bytes >= V6_BYTES => {
            let address = rest.first_chunk::<16>();
            Ok(address.map(|address| Ipv6Addr::from(*address).into()))
        }
        // Unspecified, or a Unix socket.
        (0x21, 0 | 3) => Ok(None),
        _ => Err(invalid("the header is malformed")),
    }
}

/// The rest of version 1, which has no length: byte by byte to the end of its line.
async fn read_line(
    stream: &mut (impl AsyncRead + Unpin),
    first: &[u8],
) -> io::Result<Option<IpAddr>> {
    let mut line = first.to_vec();
    while !line.ends_with(b"\r\n") {
        if line.len() == LINE_BYTES_MAX {
            return Err(invalid("the header is too long"));
        }
        line.push(stream.read_u8().await?);
    }
    let malformed = || invalid("the header is malformed");
    let line = str::from_utf8(&line).map_err(|_| malformed())?;
    let words: Vec<&str> = line.trim_ascii_end().split(' ').collect();
    match words[..] {
        [_, "UNKNOWN", ..] => Ok(None),
        [_, "TCP4", client, _, _, _] => {
            let client: Ipv4Addr = client.parse().map_err(|_| malformed())?;
            Ok(Some(client.into()))
        }
        [_, "TCP6", client, _, _, _] => {
            let client: Ipv6Addr = client.parse().map_err(|_| malformed())?;
            Ok(Some(client.into()))
        }
        _ => Err(malformed()),
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// What `header` says, and what is left of the stream.
    async fn read(header: &[u8]) -> (Result<Option<String>, ErrorKind>, Vec<u8>) {
        let stream = [header, b"GET /"].concat();
        let mut stream = stream.as_slice();
        let client = read_client(&mut stream).await;
        let client = client.map(|client| client.map(|address| address.to_string()));
        (client.map_err(|error| error.kind()), stream.to_vec())
    }

    fn binary(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let bytes = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [SIGNATURE, &[command, family], &bytes, rest].concat()
    }

    #[tokio::test]
    async fn a_header_names_the_client_and_nothing_after_it_is_read() {
        let v4 = [192, 0, 2, 1, 10, 0, 0, 1, 4, 0, 1, 187];
        let with_more = [&v4[..], &[4, 0, 1, 42]].concat();
        let mapped = [&[0; 10][..], &[255, 255, 192, 0, 2, 1], &[0; 20]].concat();
        let v6 = [&[32, 1, 13, 184][..], &[0; 11], &[1], &[0; 20]].concat();
        let v1 = |line: &str| format!("PROXY {line}\r\n").into_bytes();
        for (header, expected) in [
            (binary(0x21, 0x11, &v4), Some("192.0.2.1")),
            (binary(0x21, 0x11, &with_more), Some("192.0.2.1")),
            (binary(0x21, 0x21, &mapped), Some("192.0.2.1")),
            (binary(0x21, 0x21, &v6), Some("2001:db8::1")),
            (binary(0x20, 0x11, &v4), None),
            (binary(0x20, 0, &[]), None),
            (binary(0x21, 0, &[]), None),
            (binary(0x21, 0x31, &[0; 216]), None),
            (v1("TCP4 192.0.2.1 10.0.0.1 1024 443"), Some("192.0.2.1")),
            (v1("TCP6 2001:db8::1 ::1 1024 443"), Some("2001:db8::1")),
            (v1("UNKNOWN"), None),
            (v1("UNKNOWN ffff::1 ffff::1 65535 65535"), None),
        ] {
            let expected = Ok(expected.map(str::to_owned));
            assert_eq!(
                read(&header).await,
                (expected, b"GET /".to_vec()),
                "{header:?}"
            );
        }
    }

    /// The number of bytes that are read from `stream` if it begins with a header.
    fn header_bytes(mut stream: &[u8]) -> Option<usize> {
        let all = stream.len();
        let client = read_client(&mut stream).now_or_never();
        client.unwrap().ok().map(|_| all - stream.len())
    }

    proptest! {
        #[test]
        fn a_binary_header_is_read_to_its_length(
            command in prop_oneof![Just(0x20), Just(0x21), any::<u8>()],
            family in prop_oneof![Just(0x11), Just(0x21), any::<u8>()],
            length in prop_oneof![0..64_u16, any::<u16>()],
            rest in vec(any::<u8>(), 0..100),
        ) {
            let stream = [SIGNATURE, &[command, family], &length.to_be_bytes(), &rest].concat();
            if let Some(read) = header_bytes(&stream) {
                prop_assert_eq!(read, 16 + usize::from(length));
            }
        }

        #[test]
        fn a_text_header_is_read_to_its_end(
            line in "(PROXY )?(UNKNOWN|TCP[46]|.{0,3}) ?[0-9a-f.: \\r\\n]{0,110}\\PC*",
        ) {
            let stream = line + "\r\nGET /";
            if let Some(read) = header_bytes(stream.as_bytes()) {
                prop_assert_eq!(stream.find("\r\n"), Some(read - 2));
                prop_assert!(read <= LINE_BYTES_MAX);
            }
        }
    }

    #[tokio::test]
    async fn a_malformed_header_is_refused() {
        let long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(LINE_BYTES_MAX)).into_bytes();
        for wrong in [
            b"GET / HTTP/1.1\r\nhost: a\r\n\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.1\r\n".to_vec(),
            b"PROXY TCP4 ::1 ::1 1 1\r\n".to_vec(),
            b"PROXY UDP4 192.0.2.1 10.0.0.1 1 1\r\n".to_vec(),
            b"PROXY TCP4 \xff 10.0.0.1 1 1\r\n".to_vec(),
            long,
            binary(0x11, 0x11, &[0; 12]),
            binary(0x22, 0x11, &[0; 12]),
            binary(0x21, 0x11, &[0; 11]),
            binary(0x21, 0x21, &[0; 12]),
            binary(0x21, 0x41, &[0; 12]),
            binary(0x21, 0x11, &[0; REST_BYTES_MAX + 1]),
        ] {
            assert_eq!(
                read(&wrong).await.0,
                Err(ErrorKind::InvalidData),
                "{wrong:?}"
            );
        }
        for cut in [&b"PROXY TCP4 192.0.2.1"[..], SIGNATURE] {
            let mut stream = cut;
            let error = read_client(&mut stream).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        }
    }
}
