//! PostgreSQL URLs, read as libpq reads them (PostgreSQL manual, "Connection URIs" and "Parameter Key Words").
//!
//! A parameter is obeyed, has no meaning for larder, or is refused by its name. No error repeats a value, because a
//! mistyped URL may carry its password anywhere.

mod parameters;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgSslMode};

use crate::source::session::password_file;
use crate::source::session::url::parameters::{ENVIRONMENT, PARAMETERS, check_rule};

/// The most hosts of a URL.
const HOSTS_MAX: usize = 16;
/// A longer name of a parameter is not repeated.
const NAME_BYTES_MAX: usize = 40;

/// Why a PostgreSQL URL is refused. The messages continue a sentence that begins with the setting's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// It begins with something else.
    #[error("must be a URL that begins with postgres:// or postgresql://")]
    Scheme,
    /// It contains a character that no URL contains.
    #[error("must not hold white space or control characters: percent-encode them")]
    Character,
    /// A percent-encoded part is not UTF-8, or contains a zero byte.
    #[error("has a percent-encoded part that is not text in UTF-8")]
    Encoding,
    /// A port is not a number.
    #[error(
        "its port is not a number from 0 to 65535 (in a password, percent-encode /, ?, #, @ and :)"
    )]
    Port,
    /// An address in brackets is not one of IPv6.
    #[error("expected an IPv6 address between [ and ]")]
    Address,
    /// Something in the query is not a parameter.
    #[error(
        "has a parameter that is not name=value (in a password, percent-encode /, ?, #, @ and :)"
    )]
    Parameter,
    /// libpq has no such parameter, or larder does not know it.
    #[error("has an unknown parameter {name}")]
    Unknown {
        /// Its name.
        name: String,
    },
    /// A parameter has a value that larder can't obey.
    #[error("{name} can't be obeyed: {reason}")]
    Unsupported {
        /// Its name.
        name: &'static str,
        /// What larder can't do.
        reason: &'static str,
    },
    /// A parameter has a malformed value.
    #[error("{name} is malformed: expected {expected}")]
    Value {
        /// Its name.
        name: &'static str,
        /// What its value has to be.
        expected: &'static str,
    },
    /// The service can't be found.
    #[error("names a service that is in no service file (~/.pg_service.conf, or servicefile)")]
    Service,
}

/// The servers that a URL names, and how to connect to them.
#[derive(Clone, Debug)]
pub struct ConnectionUrl {
    /// In the order in which they are tried; never empty.
    pub(super) hosts: Vec<PgConnectOptions>,
    /// A server in recovery is passed over.
    pub(super) needs_primary: bool,
    /// The longest time to connect to one host.
    pub(super) connect_timeout: Option<Duration>,
    user: String,
}

/// The longest name of a role (`NAMEDATALEN` - 1 in PostgreSQL's source).
const ROLE_BYTES_MAX: usize = 63;

type Parameters = BTreeMap<&'static str, String>;

/// Parameters whose empty value libpq refuses; it takes that of others for none.
const NEVER_EMPTY: [&str; 4] = [
    "channel_binding",
    "connect_timeout",
    "sslmode",
    "target_session_attrs",
];

impl ConnectionUrl {
    /// Reads a URL, and the files of services and passwords that it refers to. Opens no connection.
    ///
    /// # Errors
    /// Every [`UrlError`]; none repeats a value of the URL.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
        // Not settings of larder, so `config` does not read them.
        Self::parse_with(url, |name| std::env::var_os(name)?.into_string().ok())
    }

    /// As [`ConnectionUrl::parse`], with the variables of [`ENVIRONMENT`] from `variable`.
    fn parse_with(url: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Self, UrlError> {
        let rest = ["postgres://", "postgresql://"]
            .iter()
            .find_map(|scheme| url.strip_prefix(scheme))
            .ok_or(UrlError::Scheme)?;
        if rest.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(UrlError::Character);
        }
        let mut parameters = url_parameters(rest)?;
        add_service(&mut parameters)?;
        for (variable_name, name) in ENVIRONMENT {
            if let Some(value) = variable(variable_name).filter(|value| !value.is_empty()) {
                parameters.entry(name).or_insert(value);
            }
        }
        // An older form of `PGSSLMODE=require`, which libpq reads after that.
        if variable("PGREQUIRESSL").is_some_and(|value| value.starts_with('1')) {
            let mode = parameters.entry("sslmode");
            mode.or_insert_with(|| "require".to_owned());
        }
        parameters.retain(|name, value| !value.is_empty() || NEVER_EMPTY.contains(name));
        for (name, value) in &parameters {
            check_rule(name, value)?;
        }
        Self::of_parameters(&parameters)
    }

    /// The user that connects.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// A message of PostgreSQL without what follows a colon in the user, which may be a password whose colon was encoded.
    pub(super) fn masked(&self, message: &str) -> String {
        let Some((name, _)) = self.user.split_once(':') else {
            return message.to_owned();
        };
        // PostgreSQL may have cut a long name.
        let cut = self.user.floor_char_boundary(ROLE_BYTES_MAX);
        let cut = self.user.get(..cut).unwrap_or_default();
        let masked = format!("{name}:***");
        message.replace(&self.user, &masked).replace(cut, &masked)
    }

    /// Where it leads, without credentials: `user@host:port,host:port/database`. What follows a colon in the user may be a
    /// password whose colon was encoded, so it is left out.
    pub fn target(&self) -> String {
        let address = |options: &PgConnectOptions| match options.get_socket() {
            Some(socket) => socket.display().to_string(),
            None => format!("{}:{}", options.get_host(), options.get_port()),
        };
        let hosts: Vec<String> = self.hosts.iter().map(address).collect();
        let first = self.hosts.first();
        let database = first.and_then(PgConnectOptions::get_database);
        let user = self.user.split(':').next().unwrap_or_default();
        let database = database.unwrap_or(user);
        format!("{user}@{}/{database}", hosts.join(","))
    }

    fn of_parameters(parameters: &Parameters) -> Result<Self, UrlError> {
        let text = |name: &str| parameters.get(name).map(String::as_str);
        let mut options = PgConnectOptions::new_without_pgpass();
        if let Some(user) = text("user") {
            options = options.username(user);
        }
        if let Some(database) = text("dbname") {
            options = options.database(database);
        }
        if let Some(password) = text("password") {
            options = options.password(password);
        }
        if let Some(set) = text("options") {
            // The setter takes pairs, and escapes them.
            for (name, value) in command_line_settings(set)? {
                options = options.options([(name, value)]);
            }
        }
        if let Some(file) = text("sslcert") {
            options = options.ssl_client_cert(file);
        }
        if let Some(file) = text("sslkey") {
            options = options.ssl_client_key(file);
        }
        let mode = tls_mode(text("sslmode"), text("sslrootcert"))?;
        if let Some(file) = text("sslrootcert").filter(|file| *file != "system") {
            options = options.ssl_root_cert(file);
        }
        let needs_password = text("password").is_none() && std::env::var_os("PGPASSWORD").is_none();
        let hosts = hosts(parameters, &options.ssl_mode(mode))?;
        let hosts = hosts.into_iter().map(|(name, options)| {
            let file = text("passfile").map(PathBuf::from);
            match needs_password.then(|| password_file::password(file, &name, &options)) {
                Some(Some(password)) => options.password(&password),
                _ => options,
            }
        });
        let hosts: Vec<PgConnectOptions> = hosts.collect();
        Ok(Self {
            user: hosts
                .first()
                .map_or("", PgConnectOptions::get_username)
                .to_owned(),
            hosts,
            needs_primary: text("target_session_attrs").is_some_and(|wanted| wanted != "any"),
            connect_timeout: connect_timeout(text("connect_timeout"))?,
        })
    }
}

/// The parameters that the URL gives, without its scheme.
fn url_parameters(rest: &str) -> Result<Parameters, UrlError> {
    let mut parameters = Parameters::new();
    let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (credentials, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
    let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
    let (names, ports): (Vec<_>, Vec<_>) = hosts
        .split(',')
        .map(host_and_port)
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .unzip();
    parameters.insert("user", decoded(user)?);
    parameters.insert("password", decoded(password)?);
    parameters.insert("dbname", decoded(path.strip_prefix('/').unwrap_or(path))?);
    parameters.insert("host", decoded(&names.join(","))?);
    if ports.iter().any(|port| !port.is_empty()) {
        parameters.insert("port", ports.join(","));
    }
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=').ok_or(UrlError::Parameter)?;
        let (name, value) = (decoded(name)?, decoded(value)?);
        if name == "ssl" && value == "true" {
            parameters.insert("sslmode", "require".to_owned());
            continue;
        }
        if let Some(setting) = name
            .strip_prefix("options[")
            .and_then(|name| name.strip_suffix(']'))
        {
            let value = value.replace('\\', "\\\\").replace(' ', "\\ ");
            let options = parameters.entry("options").or_default();
            options.push_str(&format!(" -c {setting}={value}"));
            continue;
        }
        // What follows an unescaped ? in a password is not repeated.
        parameters.insert(known(&name, !tail.contains('@'))?, value);
    }
    Ok(parameters)
}

/// The parameter with this name; also by the names that sqlx has for some.
fn known(name: &str, may_repeat: bool) -> Result<&'static str, UrlError> {
    let name = match name {
        "ssl-mode" => "sslmode",
        "ssl-root-cert" | "ssl-ca" => "sslrootcert",
        "ssl-cert" => "sslcert",
        "ssl-key" => "sslkey",
        name => name,
    };
    if let Some((known, _)) = PARAMETERS.iter().find(|(known, _)| *known == name) {
        return Ok(known);
    }
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if may_repeat && name.len() <= NAME_BYTES_MAX && name.chars().all(is_word) {
        Err(UrlError::Unknown {
            name: name.to_owned(),
        })
    } else {
        Err(UrlError::Parameter)
    }
}

fn decoded(text: &str) -> Result<String, UrlError> {
    let text = percent_encoding::percent_decode_str(text).decode_utf8();
    let text = text.map_err(|_| UrlError::Encoding)?;
    if text.contains('\0') {
        return Err(UrlError::Encoding);
    }
    Ok(text.into_owned())
}

/// Splits `host:port`, where the host may be an IPv6 address in brackets and the port may be absent or empty.
fn host_and_port(text: &str) -> Result<(&str, &str), UrlError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(text) => {
            let (address, port) = text.split_once(']').ok_or(UrlError::Address)?;
            // An address of one link has a zone, as in fe80::1%25eth0.
            let number = address.split('%').next().unwrap_or_default();
            if number.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(UrlError::Address);
            }
            if port.is_empty() {
                (address, port)
            } else {
                (address, port.strip_prefix(':').ok_or(UrlError::Port)?)
            }
        }
        None => text.split_once(':').unwrap_or((text, "")),
    };
    if port.is_empty() || port.parse::<u16>().is_ok() {
        Ok((host, port))
    } else {
        Err(UrlError::Port)
    }
}

/// The options for each host, with the name by which a password file knows it.
fn hosts(
    parameters: &Parameters,
    options: &PgConnectOptions,
) -> Result<Vec<(String, PgConnectOptions)>, UrlError> {
    let list = |name: &str| -> Vec<&str> {
        let text = parameters.get(name).map_or("", String::as_str);
        text.split(',').take(HOSTS_MAX + 1).collect()
    };
    let (names, addresses, ports) = (list("host"), list("hostaddr"), list("port"));
    let has_addresses = parameters.contains_key("hostaddr");
    let count = names.len().max(addresses.len());
    let has_names = parameters.contains_key("host");
    let differs = has_addresses && has_names && names.len() != addresses.len();
    if count > HOSTS_MAX || differs || ![1, count].contains(&ports.len()) {
        return Err(UrlError::Value {
            name: if has_addresses { "hostaddr" } else { "host" },
            expected: "up to 16 hosts, with as many addresses and one port or as many",
        });
    }
    let mut hosts = Vec::with_capacity(count);
    for place in 0..count {
        let name = names.get(place).copied().unwrap_or_default();
        let address = addresses.get(place).copied().unwrap_or_default();
        let port = ports
            .get(place)
            .or(ports.first())
            .copied()
            .unwrap_or_default();
        let mut options = options.clone();
        if !port.is_empty() {
            options = options.port(port.parse().map_err(|_| UrlError::Port)?);
        }
        if !address.is_empty() {
            if address.parse::<std::net::IpAddr>().is_err() {
                return Err(UrlError::Value {
                    name: "hostaddr",
                    expected: "an IP address",
                });
            }
            let verifies_name = matches!(options.get_ssl_mode(), PgSslMode::VerifyFull);
            if verifies_name && !name.is_empty() && name != address {
                return Err(UrlError::Unsupported {
                    name: "hostaddr",
                    reason: "with sslmode=verify-full larder's PostgreSQL driver compares the certificate with the \
                             address that it connects to; leave it out",
                });
            }
            options = options.host(address);
        } else if !name.is_empty() {
            options = options.host(name);
        }
        let known_as = if name.is_empty() {
            options.get_host().to_owned()
        } else {
            name.to_owned()
        };
        hosts.push((known_as, options));
    }
    Ok(hosts)
}

/// As libpq does, `require` verifies the certificate authority where one is named, and `system` requires `verify-full`.
fn tls_mode(mode: Option<&str>, root_certificate: Option<&str>) -> Result<PgSslMode, UrlError> {
    let is_system = root_certificate == Some("system");
    let default = if is_system { "verify-full" } else { "prefer" };
    let mode = match mode.unwrap_or(default) {
        "disable" => PgSslMode::Disable,
        "allow" => PgSslMode::Allow,
        "prefer" => PgSslMode::Prefer,
        "require" if root_certificate.is_some() => PgSslMode::VerifyCa,
        "require" => PgSslMode::Require,
        "verify-ca" => PgSslMode::VerifyCa,
        "verify-full" => PgSslMode::VerifyFull,
        _ => {
            return Err(UrlError::Value {
                name: "sslmode",
                expected: "disable, allow, prefer, require, verify-ca or verify-full",
            });
        }
    };
    if is_system && !matches!(mode, PgSslMode::VerifyFull) {
        return Err(UrlError::Value {
            name: "sslmode",
            expected: "verify-full with sslrootcert=system",
        });
    }
    Ok(mode)
}

/// As libpq does, zero and less mean no limit, and one second means two.
fn connect_timeout(text: Option<&str>) -> Result<Option<Duration>, UrlError> {
    let Some(text) = text else {
        return Ok(None);
    };
    let seconds: i32 = text.trim().parse().map_err(|_| UrlError::Value {
        name: "connect_timeout",
        expected: "a number of seconds",
    })?;
    let seconds = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0);
    Ok(seconds.map(|seconds| Duration::from_secs(seconds.max(2))))
}

/// The settings of `-c name=value` and `--name=value`, with `\` before white space and itself (PostgreSQL manual,
/// `options`).
fn command_line_settings(text: &str) -> Result<Vec<(String, String)>, UrlError> {
    let malformed = || UrlError::Value {
        name: "options",
        expected: "settings such as -c search_path=app",
    };
    let mut words = vec![String::new()];
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (letter, words.last_mut()) {
            ('\\', Some(word)) => word.extend(letters.next()),
            (' ', _) => words.push(String::new()),
            (letter, Some(word)) => word.push(letter),
            (_, None) => {}
        }
    }
    let mut words = words.into_iter().filter(|word| !word.is_empty());
    let mut settings = Vec::new();
    while let Some(word) = words.next() {
        let setting = if word == "-c" {
            words.next().ok_or_else(malformed)?
        } else if let Some(setting) = word.strip_prefix("--").or(word.strip_prefix("-c")) {
            setting.to_owned()
        } else {
            return Err(malformed());
        };
        let (name, value) = setting.split_once('=').ok_or_else(malformed)?;
        settings.push((name.to_owned(), value.to_owned()));
    }
    Ok(settings)
}

/// Adds what the service defines and the URL does not.
fn add_service(parameters: &mut Parameters) -> Result<(), UrlError> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let named = parameters.remove("service").filter(|name| !name.is_empty());
    let named = named.or_else(|| variable("PGSERVICE").and_then(|name| name.into_string().ok()));
    let file = parameters
        .remove("servicefile")
        .filter(|file| !file.is_empty());
    let Some(service) = named else {
        return Ok(());
    };
    let file = file
        .map(OsString::from)
        .or_else(|| variable("PGSERVICEFILE"));
    let user_file = file.map(PathBuf::from).or_else(|| {
        let home = std::env::home_dir()?;
        Some(home.join(".pg_service.conf"))
    });
    let system_file =
        variable("PGSYSCONFDIR").map(|directory| Path::new(&directory).join("pg_service.conf"));
    for file in [user_file, system_file].into_iter().flatten() {
        let Some(text) = password_file::read_text(&file) else {
            continue;
        };
        if let Some(defined) = service_parameters(&text, &service)? {
            for (name, value) in defined {
                let missing = parameters.get(name).is_none_or(String::is_empty);
                if missing {
                    parameters.insert(name, value);
                }
            }
            return Ok(());
        }
    }
    Err(UrlError::Service)
}

/// The lines `name=value` behind `[service]`; `None` if there is no such section.
fn service_parameters(
    text: &str,
    service: &str,
) -> Result<Option<Vec<(&'static str, String)>>, UrlError> {
    let mut lines = text.lines().map(str::trim);
    let section = |line: &str| {
        line.strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'))
            .map(str::to_owned)
    };
    if !lines.any(|line| section(line).as_deref() == Some(service)) {
        return Ok(None);
    }
    let lines = lines.take_while(|line| !line.starts_with('['));
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let parameter = |line: &str| {
        let (name, value) = line.split_once('=').ok_or(UrlError::Parameter)?;
        match known(name.trim(), true)? {
            "service" | "servicefile" => Err(UrlError::Service),
            name => Ok((name, value.trim().to_owned())),
        }
    };
    lines.map(parameter).collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
mod tests;
