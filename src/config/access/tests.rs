use crate::config::Config;
use crate::config::testing::{load, mistakes, only};

const HASH: &str =
    "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc";
const KEY: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
const RESOURCE: &str = "[[resource]]\nname = 'n'\ntable = 't'\n";

#[test]
fn resources_ask_for_roles_that_somebody_has() {
    let user = format!("[[auth.user]]\nname = 'a'\npassword = '{HASH}'\nroles = ['staff']\n");
    let with = |roles: &str| format!("{user}{RESOURCE}{roles}");
    let config = Config::from_toml(&with("read = ['anonymous']\nwrite = ['staff']"), &[]);
    assert!(config.is_ok());
    only(
        &with("read = ['staf']"),
        "8: resource[0].read: no user and no key has role \"staf\"",
    );
    only(
        &with("write = ['staff', 'staff']"),
        "8: resource[0].write[1]: `staff` is named twice",
    );
    only(
        &with("read = 'staff'"),
        "8: resource[0].read: expected a list such as",
    );
    only(
        &with("read = ['a b']"),
        "8: resource[0].read[0]: expected a role without white space",
    );
    only(
        &with("read = ['staff']\nwrite = ['anonymous']"),
        "9: resource[0].write: without credentials clients may write but not read",
    );
    for roles in ["write = ['staff']", "read = []"] {
        let beginning = "requires roles, but [auth] has no user";
        let (key, _) = roles.split_once(' ').unwrap();
        only(
            &format!("{RESOURCE}{roles}"),
            &format!("4: resource[0].{key}: {beginning}"),
        );
    }
    assert!(Config::from_toml(&format!("{RESOURCE}write = []"), &[]).is_ok());
    let jwt = "[auth.jwt]\nalgorithms = ['HS256']\nsecret_file = 'f'\n";
    assert!(Config::from_toml(&format!("{jwt}{RESOURCE}read = ['any']"), &[]).is_ok());
    let taken = format!("{user}{jwt}[[resource]]\nname = 'signin'\ntable = 't'");
    only(&taken, "9: resource[0].name: path /signin is reserved");
}

#[test]
fn keys_of_tokens_come_from_one_place_and_fit_the_algorithms() {
    let only = |below: &str, beginning: &str| only(&format!("[auth.jwt]\n{below}"), beginning);
    only(
        "secret_file = 'f'",
        "2: auth.jwt.secret_file: auth.jwt.algorithms must list the algorithms to accept",
    );
    only(
        "algorithms = ['HS256']",
        "2: auth.jwt.algorithms: has no effect without secret_file",
    );
    only(
        "algorithms = ['HS256']\nsecret_file = 'f'\njwks_file = 'g'",
        "4: auth.jwt.jwks_file: auth.jwt.secret_file is set, too: the keys of tokens",
    );
    only(
        "algorithms = ['HS256', 'RS256']\nsecret_file = 'f'",
        "2: auth.jwt.algorithms: a secret can only be used with HS256",
    );
    only(
        "algorithms = ['RS256', 'HS256']\njwks_file = 'f'",
        "2: auth.jwt.algorithms: HS256, HS384 and HS512 need secret_file",
    );
    only(
        "algorithms = ['RS256', 'ES256']\npublic_key_file = 'f'",
        "2: auth.jwt.algorithms: a public key can only be used with",
    );
    only(
        "algorithms = ['RS256']\njwks_file = 'f'\nprivate_key_file = 'g'",
        "4: auth.jwt.private_key_file: needs public_key_file",
    );
    for none in ["['none']", "['']", "'HS257'", "[1]", "1"] {
        let text = format!("[auth.jwt]\nalgorithms = {none}\nsecret_file = 'f'");
        let mistake = &mistakes(&text)[0];
        let expected = "2: auth.jwt.algorithms: expected a list of algorithms";
        assert!(mistake.starts_with(expected), "{mistake}");
    }
    for url in [
        "http://login.example/keys",
        "http://127.0.0.1@login.example/",
        "http://localhost.example/",
        "ftp://127.0.0.1/",
        "https://",
    ] {
        let text = format!("[auth.jwt]\nalgorithms = ['RS256']\njwks_url = '{url}'");
        let mistake = &mistakes(&text)[0];
        let expected = "3: auth.jwt.jwks_url: must begin with https://";
        assert!(mistake.starts_with(expected), "{mistake}");
    }
    for url in [
        "http://127.0.0.1:8/k",
        "http://localhost/",
        "http://[::1]:8/k",
        "https://a.example/k",
    ] {
        let text = format!("[auth.jwt]\nalgorithms = ['RS256']\njwks_url = '{url}'");
        assert!(Config::from_toml(&text, &[]).is_ok(), "{url}");
    }
    only(
        "algorithms = ['HS256']\nsecret_file = 'f'\ncookie = 'a b'",
        "4: auth.jwt.cookie: can't be the name of a cookie",
    );
    only(
        "algorithms = ['HS256']\nsecret_file = 'f'\nsame_site = 'none'",
        "4: auth.jwt.same_site: has no effect without cookie",
    );
    only(
        "algorithms = ['HS256']\nsecret_file = 'f'\ncookie = 'c'\nsame_site = 'lax'",
        "5: auth.jwt.same_site: expected \"strict\" or \"none\"",
    );
}

#[test]
fn what_anybody_could_reach_is_refused() {
    let user = format!("[[auth.user]]\nname = 'a'\npassword = '{HASH}'\n");
    only(
        "listen = '0.0.0.0:80'",
        "1: listen: 0.0.0.0:80 can be reached from other machines without authentication ([auth]) and without TLS",
    );
    only(
        &format!("listen = '[::]:80'\n{user}"),
        "1: listen: [::]:80 can be reached from other machines without TLS ([tls])",
    );
    assert!(Config::from_toml("insecure = true\nlisten = '0.0.0.0:80'", &[]).is_ok());
    only(
        "insecure = true\nadmin = '0.0.0.0:81'",
        "2: admin: 0.0.0.0:81 can be reached from other machines: the admin address then needs",
    );
    only(
        "insecure = true\ndispatch_admin = '0.0.0.0:82'",
        "2: dispatch_admin: 0.0.0.0:82 can be reached from other machines: the admin address then needs",
    );
    let token = [("LARDER_AUTH__ADMIN_TOKEN", "0123456789abcdef")];
    let config = load(Some("admin = '0.0.0.0:81'"), &token, &[]).unwrap();
    let shown = format!("{config:?}{:?}", config.auth);
    assert!(!shown.contains("0123456789abcdef") && shown.contains("admin_token = \"***\""));
    only(
        "[auth]\nadmin_token = 'a'\nadmin_token_file = 'f'",
        "2: auth.admin_token: set admin_token or admin_token_file, not both",
    );
}

#[test]
fn nothing_shows_a_secret() {
    let text = format!(
        "[auth]\nadmin_token = 's3cret-a'\n[auth.jwt]\nalgorithms = ['HS256']\nsecret = 's3cret-b'\n\
         [[auth.user]]\nname = 'a'\npassword = '{HASH}'\n[[auth.key]]\nname = 'b'\nhash = '{KEY}'"
    );
    let config = Config::from_toml(&text, &[]).unwrap();
    let shown = format!(
        "{}{config:?}{:?}",
        crate::config::dump(&config),
        config.auth
    );
    for hidden in ["s3cret", "CTFhFdXPJO1", "9f86d081", "159, 134"] {
        assert!(!shown.contains(hidden), "{hidden}: {shown}");
    }
    let text = "[auth.jwt]\nalgorithms = ['RS256']\njwks_url = 'https://me:s3cret@a.example/k'";
    let config = Config::from_toml(text, &[]).unwrap();
    let shown = format!(
        "{}{config:?}{:?}",
        crate::config::dump(&config),
        config.auth
    );
    assert!(!shown.contains("s3cret"), "{shown}");
    assert!(shown.contains("https://me:***@a.example/k"), "{shown}");
}
