//! From JSON values to the texts that PostgreSQL reads.

mod composed;
mod scalar;

use std::borrow::Cow;

use crate::resource::body::Mismatches;
use crate::resource::body::decimal::{Decimal, digits_of_numbers_in};
use crate::resource::body::parse::{Json, JsonNode};
use crate::resource::value::ValueType;
use crate::resource::writable::ColumnInput;

/// Reads `node` as a value of type `value`; adds a mismatch and returns `None` if it is not one.
pub(super) fn read_input(
    value: &ValueType,
    nullable: bool,
    node: JsonNode<'_>,
    mismatches: &mut Mismatches,
) -> Option<ColumnInput> {
    if let ValueType::Json | ValueType::Jsonb = value {
        let binary = *value == ValueType::Jsonb;
        return json(binary, nullable, node, mismatches);
    }
    if value.is_unwritable() {
        // It is only compared with the stored value.
        return Some(match node.json() {
            Json::Null => ColumnInput::Null,
            _ => ColumnInput::Text(composed::to_json_form(value, node)),
        });
    }
    match node.json() {
        Json::Null if nullable => Some(ColumnInput::Null),
        Json::Null => {
            mismatches.add("must not be null");
            None
        }
        json => text(value, node, json, mismatches).map(ColumnInput::Text),
    }
}

/// The text that PostgreSQL reads as the value that a query writes as `text`: as documents have it, without quotes.
///
/// # Errors
/// The end of a sentence that says what is expected.
pub(in crate::resource) fn text_in_query(
    value: &ValueType,
    text: &str,
) -> Result<String, Cow<'static, str>> {
    let is_number = matches!(
        value,
        ValueType::Real | ValueType::Double | ValueType::Numeric { .. }
    );
    let json = if is_number && Decimal::parse(text).is_some() {
        Json::Number(text)
    } else {
        Json::String(text)
    };
    scalar::text(value, json)
}

/// The text of `node`, whose content is `json`, not null. `value` is not a JSON type.
fn text(
    value: &ValueType,
    node: JsonNode<'_>,
    json: Json<'_>,
    mismatches: &mut Mismatches,
) -> Option<String> {
    let fits = match (value, &json) {
        (ValueType::Numeric { .. }, Json::Number(number)) => mismatches.count_digits(number),
        (ValueType::NumericText, Json::String(text)) => {
            mismatches.add_digits(digits_of_numbers_in(text))
        }
        _ => true,
    };
    if !fits {
        return None;
    }
    match (value, json) {
        (ValueType::Array(element), Json::Array(length)) => {
            composed::array(element, node, length, mismatches)
        }
        (ValueType::Composite(attributes), Json::Object(_)) => {
            composed::composite(attributes, node, mismatches)
        }
        _ => {
            let text = scalar::text(value, json);
            text.map_err(|expected| mismatches.add(expected)).ok()
        }
    }
}

/// Reads a value of type `json`, or of type `jsonb` if it is `binary`, as it is written.
fn json(
    binary: bool,
    nullable: bool,
    node: JsonNode<'_>,
    mismatches: &mut Mismatches,
) -> Option<ColumnInput> {
    let (mut zero, mut beyond, mut long) = (false, false, false);
    if binary {
        for node in node.with_contents() {
            match node.json() {
                Json::String(text) => zero |= text.contains('\0'),
                Json::Number(text) => {
                    beyond |= !Decimal::parse(text).is_some_and(|number| number.is_numeric());
                    long = long || !mismatches.count_digits(text);
                }
                _ => {}
            }
        }
    }
    if zero {
        mismatches.add("must not contain \\u0000, which jsonb does not hold");
    }
    if beyond {
        mismatches.add("must not contain numbers beyond the range of numeric");
    }
    if zero || beyond || long {
        return None;
    }
    match node.text() {
        // A document shows SQL's null in the same way.
        b"null" if nullable => Some(ColumnInput::Null),
        text => Some(ColumnInput::Text(
            String::from_utf8_lossy(text).into_owned(),
        )),
    }
}
#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::body::parse::{Scratch, with_json};

    /// What PostgreSQL is given for `json`, or the mismatches as `pointer message`.
    fn read(value: &ValueType, json: &str) -> Result<ColumnInput, String> {
        let mut mismatches = Mismatches::default();
        let given = with_json(json.as_bytes(), &mut Scratch::default(), |node| {
            read_input(value, true, node, &mut mismatches)
        });
        let messages = mismatches.found.iter();
        let messages: Vec<String> = messages
            .map(|mismatch| format!("{} {}", mismatch.pointer, mismatch.message))
            .collect();
        let given = given.unwrap_or_else(|why| panic!("{json}: {why}"));
        assert_eq!(given.is_none(), !messages.is_empty(), "{json}");
        given.ok_or_else(|| messages.join("; "))
    }

    /// `accepted`: JSON and the text for PostgreSQL, the same where it is empty.
    #[track_caller]
    fn check(value: &ValueType, accepted: &[(&str, &str)], refused: &[&str]) {
        for (json, text) in accepted {
            let text = if text.is_empty() { json } else { text };
            let expected = ColumnInput::Text((*text).to_owned());
            assert_eq!(read(value, json), Ok(expected), "{value:?} {json}");
        }
        for json in refused {
            let result = read(value, json);
            assert!(result.is_err(), "{value:?} {json}: {result:?}");
        }
        assert_eq!(read(value, " null "), Ok(ColumnInput::Null), "{value:?}");
    }

    #[test]
    fn numbers_are_in_range() {
        let refused = &["1.5", "1e-1", "\"1\"", "true", "[1]", "{}", "1e400"];
        check(
            &ValueType::SmallInt,
            &[("-32768", ""), ("32767", ""), ("-0", "0"), ("1.0e2", "100")],
            &["32768", "-32769"],
        );
        check(&ValueType::Integer, &[("2147483647", "")], &["2147483648"]);
        check(
            &ValueType::BigInt,
            &[
                ("-9223372036854775808", ""),
                ("9223372036854775807.0", "9223372036854775807"),
            ],
            &["9223372036854775808"],
        );
        check(&ValueType::Integer, &[], refused);
        let (nan, infinity) = (("\"NaN\"", "NaN"), ("\"-Infinity\"", "-Infinity"));
        check(
            &ValueType::Real,
            &[("3.4e38", ""), ("1e-45", ""), ("-0", ""), nan, infinity],
            &["3.5e38", "1e-46", "\"nan\"", "\"1\""],
        );
        check(
            &ValueType::Double,
            &[("1.7e308", ""), ("0.1", ""), ("0e999", ""), nan, infinity],
            &["1.8e308", "1e-400", "{}"],
        );
        check(
            &ValueType::Numeric { digits: None },
            &[("0.10", ""), ("1e400", ""), nan, infinity],
            &["1e131072", "1e-16384", "\"1\""],
        );
        check(
            &ValueType::Numeric {
                digits: Some((5, 2)),
            },
            &[("999.994", ""), ("1.00", ""), nan],
            &["999.995", "1000", "\"Infinity\""],
        );
        // A key of this type has one spelling.
        check(
            &ValueType::Numeric {
                digits: Some((5, 0)),
            },
            &[("12.0", "12"), ("1e2", "100"), ("1.5", "")],
            &["100000"],
        );
    }

    #[test]
    fn numbers_with_exponents_are_bounded_together() {
        let array = |count| format!("[{}]", ["1e131071"; 9][..count].join(","));
        let numbers = ValueType::Array(Box::new(ValueType::Numeric { digits: None }));
        for value in [&ValueType::Jsonb, &numbers] {
            assert!(read(value, &array(8)).is_ok(), "{value:?}");
            let refused = read(value, &array(9)).unwrap_err();
            assert!(refused.contains("longer than 1048576 digits"), "{refused}");
        }
        let ranges = ValueType::Array(Box::new(ValueType::NumericText));
        for text in [
            "[1e131071,)",
            "$.a > 1e131071",
            r#"[1\"e13\"107\\1,)"#,
            "[1e13_1071,)",
        ] {
            let strings = |count| format!("[{}]", vec![format!("\"{text}\""); count].join(","));
            assert!(read(&ranges, &strings(7)).is_ok(), "{text}");
            let refused = read(&ranges, &strings(9)).unwrap_err();
            assert!(refused.contains("longer than 1048576 digits"), "{refused}");
        }
        // Its text is kept as it is.
        assert!(read(&ValueType::Json, &array(9)).is_ok());
    }

    #[test]
    fn strings_are_of_their_type() {
        check(
            &ValueType::Text { max: Some(3) },
            &[
                ("\"abc\"", "abc"),
                ("\"é€😀\"", "é€😀"),
                ("\"a    \"", "a  "),
                ("\"\\n\"", "\n"),
            ],
            &["\"abcd\"", "\"é€😀x\"", "\"\\u0000\"", "1", "[]"],
        );
        check(
            &ValueType::Char { length: Some(3) },
            &[("\"a  \"", "a"), ("\"abc   \"", "abc")],
            &["\"abcd\""],
        );
        let uuid = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";
        let quoted = format!("\"{}\"", uuid.to_uppercase());
        check(
            &ValueType::Uuid,
            &[(&quoted, uuid)],
            &["\"a0eebc999c0b4ef8bb6d6bb9bd380a11\"", "\"\""],
        );
        check(
            &ValueType::Bytea,
            &[("\"\"", "\\x"), ("\"AP8=\"", "\\x00ff")],
            &["\"AP8\"", "\"A\"", "\"AP8=\\n\"", "\"-_-_\""],
        );
        let moods = ValueType::Enum(vec!["glad".to_owned(), "so \"so\"".to_owned()]);
        check(
            &moods,
            &[("\"so \\\"so\\\"\"", "so \"so\"")],
            &["\"sad\"", "\"\""],
        );
        assert_eq!(
            read(&moods, "\"x\""),
            Err(" must be one of \"glad\", \"so \\\"so\\\"\"".to_owned())
        );
        check(
            &ValueType::Boolean,
            &[("true", ""), ("false", "")],
            &["1", "\"true\""],
        );
        check(
            &ValueType::Other,
            &[("\"::1\"", "::1")],
            &["1", "{}", "\"\\u0000\""],
        );
        check(&ValueType::Interval, &[("\"1 day\"", "1 day")], &["1"]);
    }

    #[test]
    fn moments_are_read_in_utc() {
        check(
            &ValueType::Date,
            &[
                ("\"0044-03-15 BC\"", "0044-03-15 BC"),
                ("\"infinity\"", "infinity"),
            ],
            &["\"2023-02-29\"", "\"today\"", "1"],
        );
        let offset = (
            "\"2024-02-29T23:30:00.5-01:00\"",
            "2024-03-01T00:30:00.5+00:00",
        );
        check(
            &ValueType::Timestamp,
            &[
                offset,
                ("\"2024-02-29 12:00:00\"", "2024-02-29T12:00:00+00:00"),
            ],
            &["\"2024-02-29\"", "\"2024-02-30T00:00:00Z\""],
        );
        check(
            &ValueType::TimestampTz,
            &[offset, ("\"-infinity\"", "-infinity")],
            &["\"2024-02-29T12:00:00\""],
        );
        check(
            &ValueType::Time,
            &[("\"24:00:00\"", "24:00:00")],
            &["\"12:00:00Z\""],
        );
        check(
            &ValueType::TimeTz,
            &[("\"12:00:00-05\"", "12:00:00-05")],
            &["\"12:00:00\""],
        );
    }

    #[test]
    fn json_stays_as_it_is_written() {
        let text = r#"{"a" :[ 1.50,1e400],"a":"\u00e9"}"#;
        check(
            &ValueType::Json,
            &[(text, ""), ("1e999999", ""), ("\"\\u0000\"", "")],
            &[],
        );
        check(
            &ValueType::Jsonb,
            &[(text, ""), ("\"null\"", "")],
            &[
                "1e999999",
                "\"\\u0000\"",
                "{\"\\u0000\":1}",
                "[[{\"a\":[\"\\u0000\"]}]]",
            ],
        );
        let mut mismatches = Mismatches::default();
        let given = with_json(b" null ", &mut Scratch::default(), |node| {
            read_input(&ValueType::Json, false, node, &mut mismatches)
        });
        assert_eq!(given, Ok(Some(ColumnInput::Text("null".to_owned()))));
    }

    #[test]
    fn arrays_are_rectangular() {
        let array = |element| ValueType::Array(Box::new(element));
        check(
            &array(ValueType::Integer),
            &[
                ("[]", "{}"),
                ("[1,null,-3]", r#"{"1",NULL,"-3"}"#),
                ("[[1,2],[null,4]]", r#"{{"1","2"},{NULL,"4"}}"#),
                ("[[[[[[1]]]]]]", r#"{{{{{{"1"}}}}}}"#),
            ],
            &[
                "1",
                "\"{}\"",
                "[\"1\"]",
                "[[1],2]",
                "[1,[2]]",
                "[[1],[2,3]]",
                "[[]]",
                "[[],[]]",
                "[[[[[[[1]]]]]]]",
                "[null,[1]]",
                "[[1],null]",
                "[[1],[[2]]]",
                "[[[1]],[2]]",
                "[{}]",
            ],
        );
        assert_eq!(
            read(&array(ValueType::Integer), "[[1,2],[3,true]]"),
            Err("/1/1 must be an integer from -2147483648 to 2147483647".to_owned())
        );
        check(
            &array(ValueType::Text { max: None }),
            &[(r#"["a\"b\\",""]"#, r#"{"a\"b\\",""}"#)],
            &[],
        );
        check(
            &array(ValueType::Jsonb),
            &[(r#"[[1,"a"],null,{}]"#, r#"{"[1,\"a\"]",NULL,"{}"}"#)],
            &[],
        );
        check(
            &array(ValueType::Bytea),
            &[(r#"["AP8="]"#, r#"{"\\x00ff"}"#)],
            &["[\"?\"]"],
        );
    }

    #[test]
    fn composites_are_objects() {
        let pair = ValueType::Composite(vec![
            ("a b".to_owned(), ValueType::Integer),
            ("t".to_owned(), ValueType::Text { max: None }),
            ("j".to_owned(), ValueType::Json),
        ]);
        check(
            &pair,
            &[
                (
                    r#"{"t":"\"\\","a b":1,"j":{"x": 1}}"#,
                    r#"("1","""\\","{""x"": 1}")"#,
                ),
                ("{}", "(,,)"),
                (r#"{"t":"","j":null}"#, r#"(,"",)"#),
            ],
            &[
                "[]",
                "\"(,,)\"",
                r#"{"z":1}"#,
                r#"{"t":"","t":""}"#,
                r#"{"a b":1.5}"#,
            ],
        );
        check(
            &ValueType::Array(Box::new(pair)),
            &[(r#"[{"t":"x"},null]"#, r#"{"(,\"x\",)",NULL}"#)],
            &["[[]]", "[1]"],
        );
    }
}
