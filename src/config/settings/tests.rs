use super::*;
use crate::config::testing::only;

#[test]
fn every_preset_is_valid() {
    let mut config = Config::blank();
    for setting in &SETTINGS {
        let (Preset::Value(text) | Preset::Absent(text) | Preset::Instead(text)) = setting.preset;
        assert_eq!(setting.put(&mut config, text), Ok(()), "{}", setting.path);
    }
}

#[test]
fn every_setting_is_in_a_known_section() {
    for setting in &SETTINGS {
        let (name, _) = setting.section_and_key();
        assert!(
            SECTIONS.iter().any(|section| section.name == name),
            "{}",
            setting.path
        );
    }
}

#[test]
fn variables_follow_the_path() {
    let variable = |path| Setting::find(path).map(Setting::variable);
    assert_eq!(variable("listen").as_deref(), Some("LARDER_LISTEN"));
    assert_eq!(
        variable("memory.max_bytes").as_deref(),
        Some("LARDER_MEMORY__MAX_BYTES")
    );
}

#[test]
fn sizes_fit_their_unit() {
    let mut config = Config::blank();
    let setting = Setting::find("document_max").unwrap();
    assert_eq!(setting.put(&mut config, "1GiB"), Ok(()));
    assert_eq!(config.source.document_bytes_max, GIB);
    assert!(setting.put(&mut config, "1025MiB").is_err());
}

#[test]
fn networks_read_back() {
    let toml = "[limits]\ntrusted_proxies = ['10.0.0.0/8', '::1']";
    let config = Config::from_toml(toml, &[]).unwrap();
    let dumped = crate::config::dump(&config);
    assert!(dumped.contains("trusted_proxies = [\"10.0.0.0/8\", \"::1/128\"]"));
    let again = Config::from_toml(&dumped, &[]).unwrap();
    assert_eq!(again.limits.trusted_proxies, config.limits.trusted_proxies);
    only(
        "[limits]\ntrusted_proxies = ['10.0.0.0/33']",
        "2: limits.trusted_proxies: expected addresses or networks such as",
    );
}

#[test]
fn origins_are_those_that_browsers_send() {
    let is_valid = |origin: &str| {
        let toml = format!("[cors]\norigins = ['{origin}']");
        Config::from_toml(&toml, &[]).is_ok()
    };
    for origin in [
        "*",
        "https://app.example",
        "https://app.example:8443",
        "http://localhost:3000",
        "https://app.example:80",
        "http://127.0.0.1:65535",
        "https://[::1]:8443",
        "http://[2001:db8::1]",
        "chrome-extension://abcdefghijklmnop",
        "moz-extension://3f0c3a52-9a0b-4c1e-8f5d-2b7e6a1c9d40",
    ] {
        assert!(is_valid(origin), "{origin}");
    }
    for origin in [
        "https://app.example:443",
        "http://app.example:80",
        "https://app.example:99999",
        "https://app.example:0",
        "https://app.example:08443",
        "https://app.example:",
        "https://app.example/",
        "https://App.example",
        "https://anna@app.example",
        "https://127.1",
        "https://127.0.0.256",
        "https://[::0001]",
        "https://[::1",
        "https://a:b:c",
        "https://",
        "app.example",
        "null",
    ] {
        assert!(!is_valid(origin), "{origin}");
    }
}

#[test]
fn shares_read_back() {
    for text in ["0", "1", "0.001", "1e-7", "0.000_1", "1.0"] {
        let toml = format!("[audit]\nsample = {text}");
        let config = Config::from_toml(&toml, &[]).unwrap();
        let again = Config::from_toml(&crate::config::dump(&config), &[]).unwrap();
        let expected: f64 = text.replace('_', "").parse().unwrap();
        assert_eq!(again.audit.sample.to_bits(), expected.to_bits(), "{text}");
    }
}

/// Every stop took longer, and ended with exit code 1.
#[test]
fn a_stop_may_take_a_second_at_least() {
    only(
        "shutdown_timeout = '10ms'",
        "1: shutdown_timeout: must be between 1s and 1h, found \"10ms\"",
    );
}

#[test]
fn values_name_their_line_and_key() {
    only(
        "\nlisten = 1",
        "2: listen: expected an IP address and a port such as \"127.0.0.1:8080\", found the integer 1",
    );
    only(
        "listen = 'x'",
        "1: listen: expected an IP address and a port",
    );
    only(
        "workers = '2'",
        "1: workers: expected a whole number, found the string \"2\"",
    );
    only(
        "workers = 0",
        "1: workers: must be between 1 and 1024, found \"0\"",
    );
    only(
        "install = 'never'",
        "1: install: expected \"auto\" or \"manual\", found \"never\"",
    );
    only(
        "document_max = '2GiB'",
        "1: document_max: must be between 1B and 1GiB",
    );
    only(
        "[memory]\nmax_bytes = -1",
        "2: memory.max_bytes: can't be negative",
    );
    only(
        "[memory]\nmax_bytes = 1.5",
        "2: memory.max_bytes: expected a size such as \"256MiB\", found the float 1.5",
    );
    only(
        "[feed]\nnotify = 'yes'",
        "2: feed.notify: expected true or false, found the string \"yes\"",
    );
    only(
        "[feed]\nmax_staleness = '5ms'",
        "2: feed.max_staleness: must be between 10ms and 1h, found \"5ms\"",
    );
    only(
        "[feed]\nretention = 60",
        "2: feed.retention: expected a duration with its unit",
    );
    for wrong in ["1.001", "1e9", "nan", "inf"] {
        only(
            &format!("[audit]\nsample = {wrong}"),
            &format!("2: audit.sample: must be between 0 and 1, found \"{wrong}\""),
        );
    }
    only(
        "[audit]\nsample = -0.5",
        "2: audit.sample: can't be negative: expected a number such as 0.001",
    );
    only(
        "[audit]\nsample = '1%'",
        "2: audit.sample: expected a number such as 0.001, found the string \"1%\"",
    );
    only(
        "memory = 1",
        "1: memory: expected a section [memory], found the integer 1",
    );
    let config = Config::from_toml("[disk]\nbatch = 0x1_0\ncache = 1_000_000", &[]).unwrap();
    assert_eq!(
        (config.disk.batch_entries, config.disk.cache_bytes),
        (16, 1_000_000)
    );
}
