use super::*;

fn bytes(text: &str) -> Result<u64, ValueError> {
    let mut bytes = 0;
    Slot::Bytes(&mut bytes, 1..=bytesize::PIB).put(text)?;
    Ok(bytes)
}

#[test]
fn sizes_are_human() {
    assert_eq!(bytes("256MiB"), Ok(256 << 20));
    assert_eq!(bytes("4 GiB"), Ok(4 << 30));
    assert_eq!(bytes("1000"), Ok(1000));
    assert_eq!(bytes("1MB"), Ok(1_000_000));
    assert!(matches!(bytes("-1"), Err(ValueError::Negative { .. })));
    assert!(matches!(bytes("0"), Err(ValueError::Bounds { .. })));
    assert!(matches!(
        bytes("99999999999999999999EiB"),
        Err(ValueError::Bounds { .. })
    ));
    assert!(matches!(bytes("much"), Err(ValueError::Text { .. })));
    assert!(matches!(bytes(""), Err(ValueError::Text { .. })));
}

#[test]
fn shown_values_read_back() {
    for size in [0, 1, 1023, 1024, 1536, 256 << 20, 5 << 40] {
        assert_eq!(show_bytes(&size).parse::<ByteSize>().unwrap().0, size);
    }
    for millis in [0, 1, 50, 1500, 3_600_000, 2_592_000_000] {
        let duration = Duration::from_millis(millis);
        assert_eq!(
            humantime::parse_duration(&show_duration(&duration)).unwrap(),
            duration
        );
    }
    let text = "a \"quote\", a \\, a\ttab, \u{7f} and é";
    let value = DeValue::parse(&toml_string(text))
        .unwrap()
        .into_inner()
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(value, text);
}

#[test]
fn a_list_may_be_empty() {
    for of in [&ORIGINS, &TOKENS] {
        let mut texts = vec!["other".to_owned()];
        Slot::List(&mut texts, of).put("").unwrap();
        assert!(texts.is_empty());
        assert_eq!(Slot::List(&mut texts, of).show().as_deref(), Some("[]"));
        assert!(Slot::List(&mut texts, of).put(",").is_err());
    }
}

#[test]
fn a_name_of_a_host_may_end_with_a_dot() {
    let mut names = Vec::new();
    Slot::List(&mut names, &HOSTS).put("a.example.").unwrap();
    for wrong in [".", "a.example:80", "a b"] {
        let refused = Slot::List(&mut names, &HOSTS).put(wrong);
        assert!(refused.is_err(), "{wrong}");
    }
}

#[test]
fn secrets_are_not_echoed() {
    let mut address = SocketAddr::from(([127, 0, 0, 1], 1));
    let refused = Slot::Address(&mut address)
        .put("postgres://app:s3cret@db/app")
        .unwrap_err();
    assert!(!refused.to_string().contains("s3cret"), "{refused}");
    let mut url = None;
    let refused = Slot::Url(&mut url)
        .put("mysql://app:s3cret@db/app")
        .unwrap_err();
    assert!(!refused.to_string().contains("s3cret"), "{refused}");
}

#[test]
fn long_texts_are_cut() {
    assert!(echo(&"é".repeat(1000)).len() < 200);
}
