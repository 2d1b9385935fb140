//! The files with secrets that a configuration names.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::config::Config;

/// The permission of other users to read a file.
const READ_BY_OTHERS: u32 = 0o004;

/// Logs a warning for each file with a secret that every user of the machine may read. Blocks on the file system.
pub(super) fn warn_of_readable(config: &Config) {
    for (setting, path) in readable_by_others(config) {
        tracing::warn!("every user may read {path:?}, the secret of {setting}: chmod o-r");
    }
}

/// These files, each with its setting. One that can't be looked at is reported where it is read.
fn readable_by_others(config: &Config) -> Vec<(&'static str, &Path)> {
    let (auth, jwt) = (&config.auth, &config.auth.jwt);
    let files = [
        ("auth.admin_token_file", &auth.admin_token_file),
        ("auth.jwt.secret_file", &jwt.secret_file),
        ("auth.jwt.private_key_file", &jwt.private_key_file),
        ("tls.key_file", &config.tls.key_file),
    ];
    let files = files
        .into_iter()
        .filter_map(|(setting, path)| Some((setting, path.as_deref()?)));
    let is_readable = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & READ_BY_OTHERS != 0)
    };
    files.filter(|(_, path)| is_readable(path)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    #[test]
    fn files_that_others_may_read_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, mode| {
            let path = directory.path().join(name);
            std::fs::write(&path, "secret").unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            path
        };
        let mut config = Config::from_toml("", &[]).unwrap();
        config.auth.admin_token_file = Some(file("admin", 0o640));
        config.auth.jwt.secret_file = Some(file("jwt", 0o644));
        config.auth.jwt.private_key_file = Some(directory.path().join("none"));
        config.tls.key_file = Some(file("key", 0o604));
        let found = readable_by_others(&config);
        let settings: Vec<&str> = found.iter().map(|(setting, _)| *setting).collect();
        assert_eq!(settings, ["auth.jwt.secret_file", "tls.key_file"]);
    }
}
