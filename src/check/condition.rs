//! Conditions as PostgreSQL prints them in a plan: which of a table's columns they compare, and how.
//!
//! This is no parser of SQL. A condition is cut into tokens and at its `and`s; a part that does not look exactly as expected
//! is not understood, and gives no advice.

/// How a condition compares a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Comparison {
    /// By `=`, also with any value of an array.
    Equal,
    /// By `<`, `<=`, `>` or `>=`.
    Range,
    /// By `like` with a pattern that begins with a letter or a digit and ends in its only wildcard, `%`.
    LikePrefix,
    /// By `is null`.
    Null,
}

/// A part of a condition that compares one column of a table with something that does not depend on the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnTest {
    /// The column, unquoted.
    pub column: String,
    /// How it is compared.
    pub comparison: Comparison,
    /// The type that it is cast to before, as PostgreSQL writes it.
    pub cast: Option<String>,
    /// It is compared with columns of other rows.
    pub is_joined: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Name(String),
    /// Anything else that is not a symbol, such as a number or a string, as it is written.
    Value(String),
    Symbol(String),
}

/// The understood parts of `condition` that compare a column of the row called `alias`.
pub fn column_tests(condition: &str, alias: &str) -> Vec<ColumnTest> {
    let Some(tokens) = tokens(condition) else {
        return Vec::new();
    };
    let mut tests = Vec::new();
    for part in conjuncts(&tokens) {
        tests.extend(column_test(part, alias));
    }
    tests
}

/// Whether each part of `condition` is understood as one that compares a column of the row called by `aliases`.
pub fn is_understood(condition: &str, aliases: &[String]) -> bool {
    let Some(tokens) = tokens(condition) else {
        return false;
    };
    let is_test = |part: &[Token]| {
        let mut aliases = aliases.iter();
        aliases.any(|alias| column_test(part, alias).is_some())
    };
    conjuncts(&tokens).into_iter().all(is_test)
}

/// Splits a condition into tokens; `None` if a string or a quoted name does not end.
fn tokens(text: &str) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut characters = text.char_indices().peekable();
    while let Some((start, first)) = characters.next() {
        match first {
            ' ' => {}
            '"' | '\'' => {
                let mut content = String::new();
                loop {
                    let (_, character) = characters.next()?;
                    if character != first {
                        content.push(character);
                    } else if characters.next_if(|(_, next)| *next == first).is_some() {
                        content.push(first);
                    } else {
                        break;
                    }
                }
                tokens.push(if first == '"' {
                    Token::Name(content)
                } else {
                    Token::Value(content)
                });
            }
            _ if is_word(first) => {
                let mut end = start + first.len_utf8();
                while let Some((at, character)) = characters.next_if(|(_, next)| is_word(*next)) {
                    end = at + character.len_utf8();
                }
                let word = text.get(start..end)?.to_owned();
                tokens.push(if first.is_ascii_digit() || first == '$' {
                    Token::Value(word)
                } else {
                    Token::Name(word)
                });
            }
            '(' | ')' | '.' | ',' | '[' | ']' => tokens.push(Token::Symbol(first.to_string())),
            _ => {
                let mut symbol = first.to_string();
                while let Some((_, next)) = characters.next_if(|(_, next)| is_operator(*next)) {
                    symbol.push(next);
                }
                tokens.push(Token::Symbol(symbol));
            }
        }
    }
    Some(tokens)
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_' || character == '$' || !character.is_ascii()
}

fn is_operator(character: char) -> bool {
    "+-*/<>=~!@#%^&|`?:".contains(character)
}

fn is_symbol(token: &Token, symbol: &str) -> bool {
    matches!(token, Token::Symbol(found) if found == symbol)
}

/// `tokens` without parentheses around all of them.
fn without_parentheses(mut tokens: &[Token]) -> &[Token] {
    while let [first, inner @ .., last] = tokens {
        if !is_symbol(first, "(") || !is_symbol(last, ")") || !is_balanced(inner) {
            break;
        }
        tokens = inner;
    }
    tokens
}

/// Whether each closing parenthesis in `tokens` closes one that was opened in them.
fn is_balanced(tokens: &[Token]) -> bool {
    let mut depth = 0_usize;
    for token in tokens {
        if is_symbol(token, "(") {
            depth += 1;
        } else if is_symbol(token, ")") {
            match depth.checked_sub(1) {
                Some(less) => depth = less,
                None => return false,
            }
        }
    }
    depth == 0
}

/// The places of the tokens outside of all parentheses and brackets for which `is_wanted` is true.
fn outer_places(tokens: &[Token], is_wanted: impl Fn(&Token) -> bool) -> Vec<usize> {
    let mut depth = 0_i32;
    let mut places = Vec::new();
    for (place, token) in tokens.iter().enumerate() {
        if is_symbol(token, "(") || is_symbol(token, "[") {
            depth += 1;
        } else if is_symbol(token, ")") || is_symbol(token, "]") {
            depth -= 1;
        } else if depth == 0 && is_wanted(token) {
            places.push(place);
        }
    }
    places
}

/// The parts that are joined by `AND`. PostgreSQL puts each of several parts in parentheses, and writes no `between`.
fn conjuncts(tokens: &[Token]) -> Vec<&[Token]> {
    let tokens = without_parentheses(tokens);
    let ands = outer_places(tokens, |token| *token == Token::Name("AND".into()));
    let mut parts = Vec::new();
    let mut start = 0;
    for end in ands.into_iter().chain([tokens.len()]) {
        parts.push(without_parentheses(
            tokens.get(start..end).unwrap_or_default(),
        ));
        start = end + 1;
    }
    parts
}

fn column_test(part: &[Token], alias: &str) -> Option<ColumnTest> {
    if let [left @ .., Token::Name(is), Token::Name(null)] = part
        && (is.as_str(), null.as_str()) == ("IS", "NULL")
    {
        let (column, cast) = column_of(left, alias)?;
        return Some(ColumnTest {
            column,
            comparison: Comparison::Null,
            cast,
            is_joined: false,
        });
    }
    let operators = outer_places(
        part,
        |token| matches!(token, Token::Symbol(symbol) if is_comparison(symbol)),
    );
    let &[place] = operators.as_slice() else {
        return None;
    };
    let (left, rest) = part.split_at(place);
    let (operator, right) = rest.split_first()?;
    let Token::Symbol(operator) = operator else {
        return None;
    };
    if let Some((column, cast)) = column_of(left, alias) {
        let comparison = comparison(operator, right)?;
        return is_independent(right, alias).then_some(ColumnTest {
            column,
            comparison,
            cast,
            is_joined: names_row(right),
        });
    }
    // `value = any (column)` and `'x' like column` compare no column with a value.
    let (column, cast) = column_of(right, alias)?;
    let comparison = comparison(operator, left)?;
    let is_symmetric = comparison != Comparison::LikePrefix;
    (is_symmetric && is_independent(left, alias)).then_some(ColumnTest {
        column,
        comparison,
        cast,
        is_joined: names_row(left),
    })
}

fn is_comparison(symbol: &str) -> bool {
    matches!(symbol, "=" | "<" | "<=" | ">" | ">=" | "~~")
}

fn comparison(operator: &str, value: &[Token]) -> Option<Comparison> {
    match operator {
        "=" => Some(Comparison::Equal),
        "~~" => is_prefix_pattern(value).then_some(Comparison::LikePrefix),
        _ if value.first() == Some(&Token::Name("ANY".into())) => None,
        _ => Some(Comparison::Range),
    }
}

/// Whether a value is a string, with its type, whose only wildcard is a `%` at its end.
fn is_prefix_pattern(value: &[Token]) -> bool {
    let pattern = match without_parentheses(value) {
        [Token::Value(pattern)] => pattern,
        [Token::Value(pattern), cast, Token::Name(_)] if is_symbol(cast, "::") => pattern,
        _ => return false,
    };
    let Some(prefix) = pattern.strip_suffix('%') else {
        return false;
    };
    prefix.starts_with(|first: char| first.is_alphanumeric()) && !prefix.contains(['%', '_', '\\'])
}

/// The column that `tokens` are, qualified with `alias`, and the type that it is cast to.
fn column_of(tokens: &[Token], alias: &str) -> Option<(String, Option<String>)> {
    let tokens = without_parentheses(tokens);
    let casts = outer_places(tokens, |token| is_symbol(token, "::"));
    let (name, cast) = match casts.as_slice() {
        [] => (tokens, None),
        [place] => {
            let (name, cast) = tokens.split_at(*place);
            (name, Some(type_name(cast.split_first()?.1)))
        }
        _ => return None,
    };
    match without_parentheses(name) {
        [Token::Name(row), dot, Token::Name(column)] if row == alias && is_symbol(dot, ".") => {
            Some((column.clone(), cast))
        }
        _ => None,
    }
}

/// A type as PostgreSQL writes it, with blanks between words only.
fn type_name(tokens: &[Token]) -> String {
    let mut name = String::new();
    let mut follows_word = false;
    for token in tokens {
        let (is_word, text) = match token {
            Token::Name(text) => (true, text),
            Token::Value(text) | Token::Symbol(text) => (false, text),
        };
        if is_word && follows_word {
            name.push(' ');
        }
        name.push_str(text);
        follows_word = is_word;
    }
    name
}

/// Whether a value names columns.
fn names_row(value: &[Token]) -> bool {
    value.iter().any(|token| is_symbol(token, "."))
}

/// Whether a value names neither the row called `alias` nor a collation of its own.
fn is_independent(value: &[Token], alias: &str) -> bool {
    let names_row = value.windows(2).any(|pair| match pair {
        [Token::Name(name), dot] => name == alias && is_symbol(dot, "."),
        _ => false,
    });
    !names_row && !value.contains(&Token::Name("COLLATE".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(condition: &str) -> Vec<(String, Comparison)> {
        let tests = column_tests(condition, "t1").into_iter();
        tests.map(|test| (test.column, test.comparison)).collect()
    }

    #[test]
    fn comparisons_of_columns_are_understood() {
        use Comparison::{Equal, LikePrefix, Null, Range};
        for (condition, expected) in [
            ("(t1.a = t0.id)", vec![("a", Equal)]),
            (
                "((t1.a = $1) AND (t1.\"B c\" > 3) AND (t1.d IS NOT NULL))",
                vec![("a", Equal), ("B c", Range)],
            ),
            ("(t1.a = ANY (($1)::integer[]))", vec![("a", Equal)]),
            ("(($1)::integer = t1.a)", vec![("a", Equal)]),
            ("((t1.a)::text = ($1)::text)", vec![("a", Equal)]),
            ("(t1.a ~~ 'x AND (%'::text)", vec![("a", LikePrefix)]),
            ("((t1.a IS NULL) AND (t1.b IS NOT NULL))", vec![("a", Null)]),
            ("(t1.a = (($1)::text || 'it''s'::text))", vec![("a", Equal)]),
        ] {
            let told = told(condition);
            let told: Vec<(&str, Comparison)> =
                told.iter().map(|(name, how)| (&**name, *how)).collect();
            assert_eq!(told, expected, "{condition}");
        }
    }

    #[test]
    fn types_of_casts_are_complete() {
        for written in ["text", "double precision", "numeric(5,1)", "integer[]"] {
            let tests = column_tests(&format!("((t1.a)::{written} = $1)"), "t1");
            assert_eq!(tests[0].cast.as_deref(), Some(written));
        }
    }

    #[test]
    fn a_condition_is_understood_if_each_part_is() {
        let rows = ["t1".to_owned(), "t1_2".to_owned()];
        assert!(is_understood("((t1.a IS NULL) AND (t1_2.b = 1))", &rows));
        assert!(!is_understood("((lower(t1.a) = $1) AND (t1.b = 1))", &rows));
        assert!(!is_understood("(t2.a = 1)", &rows));
    }

    #[test]
    fn what_is_not_understood_gives_nothing() {
        for condition in [
            "((t1.a = 1) OR (t1.b = 2))",
            "(NOT t1.a)",
            "(lower(t1.a) = $1)",
            "(t1.a = t1.b)",
            "(t1.a = ($1 COLLATE \"C\"))",
            "(t1.a ~~ '%x'::text)",
            "(t1.a ~~ 'x_y%'::text)",
            "(t1.a ~~ $1)",
            "(t1.a ~~ ('x%'::text || $1))",
            "(t1.a ~~ 'x%'::text || $1)",
            "(t2.a = $1)",
            "(t1.a <> 1)",
            "((t1.a + 1) = $1)",
            "(ROW(t1.a, t1.b) > ROW($1, $2))",
            "(t1.a > ANY ('{1,2}'::integer[]))",
            "(t1.a = 'x",
        ] {
            assert_eq!(told(condition), [], "{condition}");
        }
    }
}
