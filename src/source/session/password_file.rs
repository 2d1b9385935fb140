//! Files of passwords, as libpq reads them (PostgreSQL manual, "The Password File").

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sqlx::postgres::PgConnectOptions;

/// The longest file of services or passwords that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The password for a host that the URL names `host`, from `file` or else from `~/.pgpass`.
///
/// A file that others may read is not used, and is warned about.
pub(super) fn password(
    file: Option<PathBuf>,
    host: &str,
    options: &PgConnectOptions,
) -> Option<String> {
    let file = file.or_else(|| Some(std::env::home_dir()?.join(".pgpass")))?;
    let metadata = std::fs::metadata(&file).ok()?;
    if !metadata.is_file() {
        return None;
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        let file = file.display();
        tracing::warn!(%file, "the password file is not used: other users may access it; chmod it to 0600");
        return None;
    }
    let user = options.get_username();
    let wanted = [
        if host.starts_with('/') {
            "localhost"
        } else {
            host
        },
        &options.get_port().to_string(),
        options.get_database().unwrap_or(user),
        user,
    ];
    find(&read_text(&file)?, host, wanted)
}

/// The password of the first line whose fields are `wanted` or `*`. A directory of sockets also matches by itself.
fn find(text: &str, host: &str, wanted: [&str; 4]) -> Option<String> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .find_map(|line| {
            let fields = fields(line);
            let [first, rest @ .., password] = fields.as_slice() else {
                return None;
            };
            let is = |field: &str, wanted: &str| field == "*" || field == wanted;
            let others = rest.len() == 3 && rest.iter().zip(&wanted[1..]).all(|(f, w)| is(f, w));
            let matches = others && (is(first, wanted[0]) || first == host);
            (matches && !password.is_empty()).then(|| password.clone())
        })
}

/// The five fields of a line; `\` makes the next character part of a field. The password may contain `:`.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        let count = fields.len();
        match (letter, fields.last_mut()) {
            ('\\', Some(field)) => field.extend(letters.next()),
            (':', _) if count < 5 => fields.push(String::new()),
            (letter, Some(field)) => field.push(letter),
            (_, None) => {}
        }
    }
    fields
}

/// The text of a file, up to [`FILE_BYTES_MAX`]; `None` if it can't be read.
pub(super) fn read_text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    #[test]
    fn a_file_that_others_may_read_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pgpass");
        std::fs::write(&file, "db:5432:shop:app:secret\n").unwrap();
        let options = PgConnectOptions::new_without_pgpass()
            .port(5432)
            .username("app")
            .database("shop");
        let read = |mode| {
            std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            password(Some(file.clone()), "db", &options)
        };
        assert_eq!(read(0o600).as_deref(), Some("secret"));
        for mode in [0o640, 0o604, 0o620, 0o602] {
            assert_eq!(read(mode), None, "{mode:o}");
        }
        let of_directory = password(Some(directory.path().to_owned()), "db", &options);
        assert_eq!(of_directory, None);
    }

    #[test]
    fn the_first_line_that_matches_counts() {
        let text = "# comment\ndb:5432:shop:app:one\ndb:*:*:app:t\\:w\\\\o\n::1\n*:*:*:other:three:3\nlocalhost:*:*:*:four";
        let password = |host, user| find(text, host, [host, "5432", "shop", user]);
        assert_eq!(password("db", "app").as_deref(), Some("one"));
        let elsewhere = find(text, "db", ["db", "6000", "shop", "app"]);
        assert_eq!(elsewhere.as_deref(), Some("t:w\\o"));
        assert_eq!(password("h", "other").as_deref(), Some("three:3"));
        assert_eq!(password("h", "app"), None);
        let socket = find(text, "/run", ["localhost", "1", "x", "y"]);
        assert_eq!(socket.as_deref(), Some("four"));
    }
}
