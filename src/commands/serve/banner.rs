//! What `serve` prints on stdout once it serves: its addresses, and requests to try. Each is a command that a shell runs as
//! it stands.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::auth::config::ANONYMOUS;
use crate::config::Config;
use crate::resource::definition::ResourceDefinition;

/// The longest key that a proposed request has, encoded. Instead of a longer one a list is proposed.
const KEY_BYTES_MAX: usize = 200;

/// The addresses are those that were bound: a configured port may be 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Banner<'b> {
    pub(super) config: &'b Config,
    pub(super) listen: SocketAddr,
    pub(super) admin: SocketAddr,
    /// The URL of the private PostgreSQL.
    pub(super) private: Option<&'b str>,
}

/// A resource whose documents can be requested by hand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proposal<'b> {
    pub(super) resource: &'b ResourceDefinition,
    /// The user whose password curl asks for; `None`: no credentials are needed.
    user: Option<&'b str>,
}

impl Proposal<'_> {
    /// Whether the request can name one document: where documents have owners, the first may be one of another.
    pub(super) fn is_of_one_document(&self) -> bool {
        self.resource.owner.is_none()
    }
}

impl<'b> Banner<'b> {
    /// The first resource that needs no credentials, else the first that a configured user may read.
    pub(super) fn proposal(&self) -> Option<Proposal<'b>> {
        let auth = &self.config.auth;
        let resources = || self.config.resources.iter();
        let is_public = |resource: &&ResourceDefinition| {
            let roles = resource.read.as_ref().map(|read| read.value.as_slice());
            match roles {
                _ if !auth.is_on() => true,
                Some(roles) => roles.iter().any(|role| role == ANONYMOUS),
                None => false,
            }
        };
        if let Some(resource) = resources().find(is_public) {
            let user = None;
            return Some(Proposal { resource, user });
        }
        resources().find_map(|resource| {
            let mut users = auth.users.iter();
            let user = users.find(|user| match &resource.read {
                None => true,
                Some(read) => read.value.iter().any(|role| user.roles.contains(role)),
            })?;
            let user = Some(user.name.as_str());
            Some(Proposal { resource, user })
        })
    }

    /// The text. `keys` are encoded keys of documents of the proposed resource.
    pub(super) fn text(&self, keys: &[String]) -> String {
        let scheme = if self.config.has_tls() {
            "https"
        } else {
            "http"
        };
        let (listen, admin) = (self.listen, self.admin);
        let mut text =
            format!("larder listens on {scheme}://{listen}, admin address http://{admin}\n");
        if let Some(url) = self.private {
            text.push_str(&format!("private PostgreSQL: {url}\n"));
        }
        let mut commands = Vec::new();
        if let Some(proposal) = self.proposal() {
            let origin = format!("{scheme}://{}", reachable(listen));
            commands.push(self.command(proposal, &origin, keys));
        }
        // The other paths need the token.
        let auth = &self.config.auth;
        let has_token = auth.admin_token.is_some() || auth.admin_token_file.is_some();
        let path = if has_token { "readyz" } else { "status" };
        commands.push(format!("curl 'http://{}/{path}'", reachable(admin)));
        text + "try: " + &commands.join("\n     ") + "\n"
    }

    fn command(&self, proposal: Proposal<'_>, origin: &str, keys: &[String]) -> String {
        let mut command = "curl -i ".to_owned();
        if self.config.has_tls() {
            // The certificate is for the name of the host.
            command.push_str("-k ");
        }
        if let Some(user) = proposal.user {
            command.push_str(&format!("-u {} ", quoted(user)));
        }
        let name = &proposal.resource.name.value;
        let mut short = keys.iter().filter(|key| key.len() <= KEY_BYTES_MAX);
        let url = match short.next() {
            Some(key) if proposal.is_of_one_document() => {
                // curl would take such a segment out of the path.
                if matches!(key.as_str(), "." | "..") {
                    command.push_str("--path-as-is ");
                }
                format!("{origin}/{name}/{key}")
            }
            _ => format!("{origin}/{name}?limit=1"),
        };
        command + &quoted(&url)
    }
}

/// The address at which this machine reaches a listener on `bound`.
fn reachable(bound: SocketAddr) -> SocketAddr {
    let ip = match bound.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, bound.port())
}

/// `text` as one word of a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$\
                        AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

    fn text(toml: &str, listen: &str, keys: &[&str]) -> String {
        let config = Config::from_toml(toml, &[]).unwrap();
        let banner = Banner {
            config: &config,
            listen: listen.parse().unwrap(),
            admin: "127.0.0.1:8081".parse().unwrap(),
            private: None,
        };
        let keys: Vec<String> = keys.iter().map(|&key| key.to_owned()).collect();
        banner.text(&keys)
    }

    const ITEMS: &str = "[[resource]]\nname = 'items'\ntable = 'item'\n";

    #[test]
    fn a_document_is_proposed_or_without_one_a_list() {
        let try_key = |keys: &[&str]| text(ITEMS, "127.0.0.1:80", keys);
        assert!(try_key(&["a%20b"]).contains("try: curl -i 'http://127.0.0.1:80/items/a%20b'\n"));
        assert!(try_key(&[".."]).contains("curl -i --path-as-is 'http://127.0.0.1:80/items/..'\n"));
        assert!(try_key(&[""]).contains("'http://127.0.0.1:80/items/'\n"));
        let long = "x".repeat(KEY_BYTES_MAX + 1);
        assert!(try_key(&[&long, "y"]).contains("/items/y'"));
        for keys in [&[][..], &[long.as_str()]] {
            assert!(try_key(keys).contains("/items?limit=1'"));
        }
        let everywhere = text(ITEMS, "[::]:80", &["1"]);
        assert!(
            everywhere.contains("'http://[::1]:80/items/1'"),
            "{everywhere}"
        );
    }

    #[test]
    fn a_request_without_credentials_comes_first_then_one_of_a_user() {
        let user = format!("[[auth.user]]\nname = 'ann'\npassword = '{HASH}'\nroles = ['r']\n");
        let public = "[[resource]]\nname = 'open'\ntable = 'open'\nread = ['anonymous']\n";
        let both = text(&format!("{user}{ITEMS}{public}"), "127.0.0.1:80", &["1"]);
        assert!(
            both.contains("curl -i 'http://127.0.0.1:80/open/1'"),
            "{both}"
        );
        let closed = text(&format!("{user}{ITEMS}"), "127.0.0.1:80", &["1"]);
        assert!(
            closed.contains("curl -i -u 'ann' 'http://127.0.0.1:80/items/1'"),
            "{closed}"
        );
    }

    #[test]
    fn what_needs_a_key_or_the_admin_token_is_not_proposed() {
        let key = format!("[[auth.key]]\nname = 'k'\nhash = '{}'\n", "0".repeat(64));
        let text = text(&format!("{key}{ITEMS}"), "127.0.0.1:80", &["1"]);
        assert!(!text.contains("/items"), "{text}");
        assert!(text.contains("try: curl 'http://127.0.0.1:8081/status'\n"));
    }

    #[test]
    fn a_quote_ends_no_word() {
        assert_eq!(quoted("a'b"), r"'a'\''b'");
    }
}
