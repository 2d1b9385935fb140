//! Checks of several settings together.

use super::places::Places;
use super::{Config, access, dispatch, url};
use crate::resource::definition::{Mistake, ResourceDefinition};
use crate::server::tls::Tls;

/// Finds what is wrong with files that settings name.
pub(super) fn check_files(config: &Config, places: &Places) -> Option<Mistake> {
    let error = Tls::load(&config.tls).err()?;
    Some(places.mistake(&[error.setting()], error.to_string()))
}

/// Finds settings that are each valid but do not fit together.
pub(super) fn check(config: &Config, places: &Places) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    let mut refuse =
        |paths: &[&str], message: String| mistakes.push(places.mistake(paths, message));
    if config.admin == config.listen && config.admin.port() != 0 {
        let admin = config.admin;
        refuse(
            &["admin", "listen"],
            format!("{admin} is also the public address: admin needs an address of its own"),
        );
    }
    if config.cors.credentials && config.cors.origins.iter().any(|origin| origin == "*") {
        let message = "credentials require origins by name: with \"*\" every page could use them";
        refuse(&["cors.credentials", "cors.origins"], message.to_owned());
    }
    let feed = &config.feed;
    if feed.poll_interval > feed.max_staleness {
        let message = format!(
            "poll_interval ({}) must be at most max_staleness ({}), or the tiers would never answer",
            humantime::format_duration(feed.poll_interval),
            humantime::format_duration(feed.max_staleness)
        );
        refuse(&["feed.poll_interval", "feed.max_staleness"], message);
    }
    match (&config.tls.certificate_file, &config.tls.key_file) {
        (Some(_), None) => {
            let message = "key_file must name the certificate's key".to_owned();
            refuse(&["tls.certificate_file"], message);
        }
        (None, Some(_)) => {
            let message = "certificate_file must name the key's certificate".to_owned();
            refuse(&["tls.key_file"], message);
        }
        _ => {}
    }
    if config.source.pooler && config.listen_url.is_none() {
        let message = "LISTEN does not work through a pooler: set [database] listen_url to a direct connection";
        refuse(&["database.pooler"], message.to_owned());
    }
    if config.listen_url.is_some() && config.database_url.is_none() {
        refuse(
            &["database.listen_url"],
            "has no effect without [database] url or DATABASE_URL".to_owned(),
        );
    }
    let guarded = |resource: &ResourceDefinition| resource.row_security_as_larder;
    if let (Some(url), Some(listen_url)) = (&config.database_url, &config.listen_url)
        && url::user(url) != url::user(listen_url)
        && config.resources.iter().any(guarded)
    {
        let message = "must name the same user as url: with row_security = \"as-larder\" changes of \
            policies are checked for the user that reads documents";
        refuse(&["database.listen_url"], message.to_owned());
    }
    mistakes.extend(check_memory(config, places));
    mistakes.extend(access::check(config, places));
    mistakes.extend(dispatch::check(config));
    mistakes
}

/// Finds bounds of memory that would refuse what other bounds allow.
fn check_memory(config: &Config, places: &Places) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    let mut refuse =
        |paths: &[&str], message: &str| mistakes.push(places.mistake(paths, message.to_owned()));
    if config.answers.memory_bytes_max < config.answers.answer_bytes_max {
        refuse(
            &["limits.answers_memory", "limits.answer_max"],
            "must be at least limits.answer_max, or the longest answers could never be sent",
        );
    }
    if config.bodies_bytes_max / 4 < config.source.document_bytes_max {
        refuse(
            &["limits.bodies_memory", "document_max"],
            "must be at least four times document_max: one client may have a quarter of it",
        );
    }
    mistakes
}

#[cfg(test)]
mod tests {
    #[test]
    fn credentials_are_for_origins_by_name() {
        let cors = |origins: &str| format!("[cors]\norigins = {origins}\ncredentials = true");
        crate::config::testing::only(
            &cors("['*']"),
            "3: cors.credentials: credentials require origins by name",
        );
        let text = cors("['https://a.example', 'http://localhost:3000']");
        let config = crate::config::Config::from_toml(&text, &[]).unwrap();
        assert_eq!(config.cors.origins.len(), 2);
        let again = crate::config::dump(&config);
        let again = crate::config::Config::from_toml(&again, &[]).unwrap();
        assert_eq!(again.cors.origins, config.cors.origins);
        for wrong in [
            "https://a.example/",
            "a.example",
            "null",
            "https://A.example",
            "",
        ] {
            crate::config::testing::only(
                &format!("[cors]\norigins = ['{wrong}']"),
                "2: cors.origins: expected a list of origins such as",
            );
        }
    }

    use crate::config::Config;
    use crate::config::testing::only;

    #[test]
    fn settings_must_fit_together() {
        only(
            "[feed]\npoll_interval = '2s'",
            "2: feed.poll_interval: poll_interval (2s) must be at most",
        );
        only(
            "[feed]\nmax_staleness = '20ms'",
            "2: feed.max_staleness: poll_interval (50ms) must be",
        );
        only(
            "admin = '127.0.0.1:8080'",
            "1: admin: 127.0.0.1:8080 is also the public address",
        );
        let resource = "[[resource]]\nname = 'n'\ntable = 't'";
        let pooler = format!("[database]\nurl = 'postgres://db/x'\npooler = true\n{resource}");
        only(
            &pooler,
            "3: database.pooler: LISTEN does not work through a pooler",
        );
        let listen = format!("[database]\nlisten_url = 'postgres://db/x'\n{resource}");
        only(&listen, "2: database.listen_url: has no effect without");
        let roles =
            "[database]\nurl = 'postgres://a:s3cret@db/x'\nlisten_url = 'postgres://b@db/x'";
        let guarded = format!("{roles}\n{resource}\nrow_security = 'as-larder'");
        only(
            &guarded,
            "3: database.listen_url: must name the same user as url",
        );
        let same = guarded.replace("//b@", "//a@");
        assert!(Config::from_toml(&same, &[]).is_ok());
        only(
            "[limits]\nproxy_protocol = true",
            "2: limits.proxy_protocol: expected addresses or networks such as",
        );
        assert!(Config::from_toml("listen = '127.0.0.1:0'\nadmin = '127.0.0.1:0'", &[]).is_ok());
    }
}
