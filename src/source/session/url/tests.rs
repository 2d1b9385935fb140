//! Tests of URLs.

use super::*;

fn refusal(url: &str) -> String {
    ConnectionUrl::parse(url).unwrap_err().to_string()
}

/// What larder did not know was ignored, with a warning that printed the value.
#[test]
fn parameters_that_are_not_obeyed_are_refused_by_name_and_never_by_value() {
    for (parameter, name) in [
        ("ssl_mode=verify-full", "ssl_mode"),
        ("sslpassword=s3cret", "sslpassword"),
        ("channel_binding=require", "channel_binding"),
        ("require_auth=scram-sha-256", "require_auth"),
        ("require_auth=!gss,!password", "require_auth"),
        ("require_auth=!gss,scram-sha-256", "require_auth"),
        ("requirepeer=s3cret", "requirepeer"),
        ("sslcrl=/s3cret", "sslcrl"),
        ("sslcrldir=/s3cret", "sslcrldir"),
        ("scram_client_key=s3cret", "scram_client_key"),
        ("scram_server_key=s3cret", "scram_server_key"),
        ("sslnegotiation=direct", "sslnegotiation"),
        ("sslsni=0", "sslsni"),
        ("sslcertmode=disable", "sslcertmode"),
        ("sslcertmode=require", "sslcertmode"),
        ("load_balance_hosts=random", "load_balance_hosts"),
        ("client_encoding=LATIN1", "client_encoding"),
        ("replication=database", "replication"),
        ("ssl=s3cret", "ssl"),
        ("sslmode=s3cret", "sslmode"),
        ("sslmode=", "sslmode"),
        ("channel_binding=", "channel_binding"),
        ("target_session_attrs=", "target_session_attrs"),
        ("connect_timeout=", "connect_timeout"),
        ("sslmode=require&sslrootcert=system", "sslmode"),
        ("gssencmode=require", "gssencmode"),
        (
            "ssl_min_protocol_version=TLSv1.3",
            "ssl_min_protocol_version",
        ),
        (
            "ssl_max_protocol_version=TLSv1.2",
            "ssl_max_protocol_version",
        ),
        ("target_session_attrs=standby", "target_session_attrs"),
        ("connect_timeout=s3cret", "connect_timeout"),
        ("hostaddr=s3cret", "hostaddr"),
        ("hostaddr=127.0.0.1&sslmode=verify-full", "hostaddr"),
        ("port=s3cret", "port"),
    ] {
        let refused = refusal(&format!("postgres://app@db.example/app?{parameter}"));
        assert!(refused.contains(name), "{parameter}: {refused}");
        assert!(!refused.contains("s3cret"), "{refused}");
    }
    for url in [
        "postgres://app:12?s3cret=x@db.example/app",
        "postgres://app:12?s3cret@db.example/app",
        "postgres://db.example/app?s3cret",
        "postgres://db.example/app?service=s3cret&servicefile=/dev/null",
        "postgres://db.example/app?s3cret!=1",
        "postgres://db.example:s3cret/app",
        "postgres://db.example:65536/app",
        "postgres://db.example/app?user=s3cret%00",
        "postgres://db.example/app?user=s3cret%FF",
    ] {
        assert!(!refusal(url).contains("s3cret"), "{url}");
    }
    // A line break that a file ends with would be part of a value.
    let refused = refusal("postgres://db.example/app\n");
    assert_eq!(refused, UrlError::Character.to_string());
    // Longer than any parameter: perhaps a password with an unescaped `?`.
    let long = "n".repeat(NAME_BYTES_MAX + 1);
    let refused = refusal(&format!("postgres://db.example/app?{long}=1"));
    assert_eq!(refused, UrlError::Parameter.to_string());
    let hosts = vec!["h"; HOSTS_MAX + 1].join(",");
    assert!(refusal(&format!("postgres://{hosts}/app")).contains("16 hosts"));
    let obeyed = "channel_binding=prefer&require_auth=!gss,!sspi&gssencmode=disable&keepalives_idle=30\
        &connect_timeout=10&target_session_attrs=read-write&sslsni=1&application_name=a&sslpassword=\
        &oauth_issuer=a&oauth_client_id=b&min_protocol_version=3.0";
    ConnectionUrl::parse(&format!("postgres://db.example/app?{obeyed}")).unwrap();
}

#[test]
fn a_named_authority_is_verified() {
    let mode = |parameters: &str| {
        let url = ConnectionUrl::parse(&format!("postgres://db.example/app?{parameters}"));
        format!("{:?}", url.unwrap().hosts[0].get_ssl_mode())
    };
    assert_eq!(mode("sslmode=require"), "Require");
    assert_eq!(mode("sslmode=require&sslrootcert=/ca.pem"), "VerifyCa");
    assert_eq!(
        mode("sslmode=verify-full&sslrootcert=/ca.pem"),
        "VerifyFull"
    );
    assert_eq!(mode("sslrootcert=system"), "VerifyFull");
    assert_eq!(mode("ssl=true"), "Require");
    for (text, expected) in [
        ("disable", "Disable"),
        ("allow", "Allow"),
        ("prefer", "Prefer"),
        ("verify-ca", "VerifyCa"),
        ("verify-full", "VerifyFull"),
    ] {
        assert_eq!(mode(&format!("sslmode={text}")), expected);
        assert_eq!(mode(&format!("ssl-mode={text}")), expected);
    }
}

/// What sqlx was told, by its debug format: it has no getters for these.
fn told(url: &str) -> String {
    let parsed = ConnectionUrl::parse(url).unwrap();
    format!("{:?}", parsed.hosts[0])
}

#[test]
fn files_of_certificates_are_obeyed_by_all_their_names() {
    for (parameter, field) in [
        ("sslrootcert", "ssl_root_cert"),
        ("ssl-root-cert", "ssl_root_cert"),
        ("ssl-ca", "ssl_root_cert"),
        ("sslcert", "ssl_client_cert"),
        ("ssl-cert", "ssl_client_cert"),
        ("sslkey", "ssl_client_key"),
        ("ssl-key", "ssl_client_key"),
    ] {
        let told = told(&format!("postgres://h/x?{parameter}=/file.pem"));
        let expected = format!("{field}: Some(File(\"/file.pem\"))");
        assert!(told.contains(&expected), "{parameter}: {told}");
    }
    // No file of this name is meant.
    let told = told("postgres://h/x?sslrootcert=system");
    assert!(told.contains("ssl_root_cert: None"), "{told}");
}

#[test]
fn a_certificate_is_compared_with_the_address_only_where_that_is_the_name() {
    for host in ["", "&host=10.0.0.1"] {
        let url = format!("postgres:///x?hostaddr=10.0.0.1&sslmode=verify-full{host}");
        let host = ConnectionUrl::parse(&url).unwrap().hosts.remove(0);
        assert_eq!(host.get_host(), "10.0.0.1");
    }
}

#[test]
fn variables_count_where_the_url_says_nothing() {
    let with = |url: &str, variable: &str, value: &str| {
        ConnectionUrl::parse_with(url, |name| (name == variable).then(|| value.to_owned()))
    };
    let url = "postgres://h/x?sslmode=require";
    for (variable, value, parameter) in [
        ("PGSSLCRL", "s3cret", "sslcrl"),
        ("PGSSLCRLDIR", "s3cret", "sslcrldir"),
        ("PGSSLCERTMODE", "require", "sslcertmode"),
        ("PGSSLNEGOTIATION", "direct", "sslnegotiation"),
        ("PGSSLSNI", "0", "sslsni"),
        (
            "PGSSLMINPROTOCOLVERSION",
            "TLSv1.3",
            "ssl_min_protocol_version",
        ),
        (
            "PGSSLMAXPROTOCOLVERSION",
            "TLSv1.2",
            "ssl_max_protocol_version",
        ),
        ("PGCHANNELBINDING", "require", "channel_binding"),
        ("PGREQUIREAUTH", "scram-sha-256", "require_auth"),
        ("PGREQUIREPEER", "s3cret", "requirepeer"),
        ("PGGSSENCMODE", "require", "gssencmode"),
        ("PGTARGETSESSIONATTRS", "standby", "target_session_attrs"),
        ("PGCONNECT_TIMEOUT", "s3cret", "connect_timeout"),
        ("PGMINPROTOCOLVERSION", "3.2", "min_protocol_version"),
        ("PGMAXPROTOCOLVERSION", "2.0", "max_protocol_version"),
    ] {
        let refused = with(url, variable, value).unwrap_err().to_string();
        assert!(refused.contains(parameter), "{variable}: {refused}");
        assert!(!refused.contains("s3cret"), "{refused}");
        assert!(with(url, variable, "").is_ok(), "{variable}");
    }
    for (variable, value) in [
        ("PGMINPROTOCOLVERSION", "3.0"),
        ("PGMAXPROTOCOLVERSION", "latest"),
    ] {
        assert!(with(url, variable, value).is_ok(), "{variable}");
    }
    let mode = |url, variable, value| {
        let parsed = with(url, variable, value).unwrap();
        format!("{:?}", parsed.hosts[0].get_ssl_mode())
    };
    assert_eq!(mode(url, "PGSSLROOTCERT", "/ca.pem"), "VerifyCa");
    assert_eq!(
        mode("postgres://h/x", "PGSSLMODE", "verify-full"),
        "VerifyFull"
    );
    assert_eq!(mode(url, "PGSSLMODE", "disable"), "Require");
    assert_eq!(mode("postgres://h/x", "PGREQUIRESSL", "1"), "Require");
    assert_eq!(mode("postgres://h/x", "PGREQUIRESSL", "0"), "Prefer");
    let disabled = "postgres://h/x?sslmode=disable";
    assert_eq!(mode(disabled, "PGREQUIRESSL", "1"), "Disable");
}

#[test]
fn a_password_file_counts_where_the_url_has_no_password() {
    use std::os::unix::fs::PermissionsExt;

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pgpass");
    std::fs::write(&file, "db.example:*:*:*:filed\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let file = file.display();
    let told = |credentials: &str, more: &str| {
        told(&format!(
            "postgres://{credentials}db.example/x?passfile={file}{more}"
        ))
    };
    assert!(told("app@", "").contains("password: Some(\"filed\")"));
    assert!(told("app:given@", "").contains("password: Some(\"given\")"));
    // The file knows the host by its name.
    assert!(told("app@", "&hostaddr=10.0.0.1").contains("password: Some(\"filed\")"));
    let file = file.to_string();
    let of_variable = ConnectionUrl::parse_with("postgres://app@db.example/x", |name| {
        (name == "PGPASSFILE").then(|| file.clone())
    });
    assert!(format!("{:?}", of_variable.unwrap().hosts[0]).contains("filed"));
}

#[test]
fn a_primary_is_demanded_and_the_time_to_connect_is_limited_as_by_libpq() {
    let parsed = |parameter: &str| {
        let url = format!("postgres://h/x?{parameter}");
        let parsed = ConnectionUrl::parse(&url).unwrap();
        (
            parsed.needs_primary,
            parsed.connect_timeout.map(|limit| limit.as_secs()),
        )
    };
    assert_eq!(parsed(""), (false, None));
    assert_eq!(parsed("target_session_attrs=any"), (false, None));
    assert_eq!(parsed("target_session_attrs=read-write"), (true, None));
    assert_eq!(parsed("target_session_attrs=primary"), (true, None));
    for (seconds, limit) in [("-1", None), ("0", None), ("1", Some(2)), ("10", Some(10))] {
        assert_eq!(parsed(&format!("connect_timeout={seconds}")).1, limit);
    }
}

#[test]
fn urls_that_psql_accepts_name_the_same_servers() {
    for (url, servers) in [
        ("postgres://a:b@[::1]:6000/x", "::1 6000 a x"),
        ("postgres://a@/x?host=/socket&port=7", "/socket 7 a x"),
        ("postgres://a@%2Frun%2Fpg/x", "/run/pg 5432 a x"),
        ("postgres://a@h,g:7/x", "h 5432 a x, g 7 a x"),
        ("postgres://a@h,g/x?port=9", "h 9 a x, g 9 a x"),
        ("postgres://a@h/x?hostaddr=10.0.0.1", "10.0.0.1 5432 a x"),
        ("postgres://a:p%40w#d@h/x", "h 5432 a x"),
        ("postgres://u@h?user=a&dbname=x", "h 5432 a x"),
        ("postgres://a:p@w@h/x", "h 5432 a x"),
        ("postgres://a@[fe80::1%25eth0]/x", "fe80::1%eth0 5432 a x"),
    ] {
        let parsed = ConnectionUrl::parse(url).unwrap();
        let shown = parsed.hosts.iter().map(|host| {
            let (name, port) = (host.get_host(), host.get_port());
            let database = host.get_database().unwrap();
            format!("{name} {port} {} {database}", host.get_username())
        });
        assert_eq!(shown.collect::<Vec<_>>().join(", "), servers, "{url}");
    }
    for url in [
        "postgres://a@h,g,i:1/x?port=1,2",
        "postgres://h,g/x?hostaddr=::1",
    ] {
        assert!(refusal(url).contains("host"), "{url}");
    }
    assert_eq!(refusal("postgres://[db]/x"), UrlError::Address.to_string());
    let options =
        ConnectionUrl::parse("postgres://h/x?options=-c%20a.b=1\\%202%20--c=3&options[d]=4%205");
    assert_eq!(
        options.unwrap().hosts[0].get_options(),
        Some("-c a.b=1\\ 2 -c c=3 -c d=4\\ 5")
    );
    let parsed = ConnectionUrl::parse("postgres://h/x?options[e]=6%5C7").unwrap();
    assert_eq!(parsed.hosts[0].get_options(), Some("-c e=6\\\\7"));
    assert!(refusal("postgres://h/x?options=-e").contains("options"));
}

/// As the password in `postgres://app%3As3cret@host`, whose colon should not have been encoded.
#[test]
fn messages_show_no_password_that_the_user_contains() {
    let masked = |user: &str, message: &str| {
        let url = format!("postgres://{}@h/x", user.replace(':', "%3A"));
        ConnectionUrl::parse(&url).unwrap().masked(message)
    };
    let message = "password authentication failed for user \"app:s3cret\"";
    let shown = "password authentication failed for user \"app:***\"";
    assert_eq!(masked("app:s3cret", message), shown);
    assert_eq!(masked("app", message), message);
    let long = format!("app:{}", "s3cret".repeat(20));
    for sent in [&long, &long[..63]] {
        assert_eq!(masked(&long, &message.replace("app:s3cret", sent)), shown);
    }
}

#[test]
fn a_service_defines_what_the_url_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("services");
    let text = "[other]\nhost=wrong\n\n[shop]\n# comment\nhost=db.example\nport=6000\ndbname=shop\n[last]\nport=1";
    std::fs::write(&file, text).unwrap();
    let url = |name: &str| {
        format!(
            "postgres:///mine?service={name}&servicefile={}",
            file.display()
        )
    };
    let host = ConnectionUrl::parse(&url("shop")).unwrap().hosts.remove(0);
    assert_eq!((host.get_host(), host.get_port()), ("db.example", 6000));
    assert_eq!(host.get_database(), Some("mine"));
    assert_eq!(refusal(&url("none")), UrlError::Service.to_string());
    std::fs::write(&file, "[shop]\nssl_mode=require").unwrap();
    assert!(refusal(&url("shop")).contains("ssl_mode"));
    std::fs::write(&file, "[shop]\nservice=last\n[last]\nport=1").unwrap();
    assert_eq!(refusal(&url("shop")), UrlError::Service.to_string());
}
