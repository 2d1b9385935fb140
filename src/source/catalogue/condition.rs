//! Analyses the condition of a policy by the text of its node tree (`pg_policy.polqual`).
//!
//! The row alone decides a condition that consists of the row's own columns, constants, and PostgreSQL's own immutable
//! functions and operators. This module lists the kinds of nodes that such a condition may have. A kind that is not
//! listed (a subquery, `current_user`, a parameter, a conversion through text, or one of a later version of PostgreSQL)
//! is an obstacle. `policies` checks the functions, operators and types.

/// The first oid that is not of PostgreSQL's own objects (`FirstNormalObjectId`).
pub(super) const FIRST_USER_OID: u32 = 16384;

/// Nodes whose value depends only on their arguments, and on the functions, operators and types that they name.
/// PostgreSQL 14 and earlier use shorter names for some of them.
const ROW_ONLY_NODES: [&str; 24] = [
    "VAR",
    "CONST",
    "OPEXPR",
    "DISTINCTEXPR",
    "NULLIFEXPR",
    "SCALARARRAYOPEXPR",
    "FUNCEXPR",
    "BOOLEXPR",
    "NULLTEST",
    "BOOLEANTEST",
    "RELABELTYPE",
    "ARRAYCOERCEEXPR",
    "COLLATEEXPR",
    "COLLATE",
    "CASEEXPR",
    "CASE",
    "CASEWHEN",
    "WHEN",
    "CASETESTEXPR",
    "COALESCEEXPR",
    "COALESCE",
    "ARRAYEXPR",
    "ARRAY",
    "SUBSCRIPTINGREF",
];

/// The objects that a condition names, and the first part of it that the row alone does not decide.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PolicyCondition {
    /// The functions that it calls, and those behind its operators.
    pub(super) functions: Vec<u32>,
    /// Its operators.
    pub(super) operators: Vec<u32>,
    /// The types of its values that are not PostgreSQL's own.
    pub(super) types: Vec<u32>,
    /// The first part that the row alone does not decide. The text continues a sentence that begins with the policy's
    /// name.
    pub(super) obstacle: Option<String>,
}

impl PolicyCondition {
    /// Reads a node tree as PostgreSQL writes it.
    pub(super) fn read(tree: &str) -> Self {
        let mut condition = Self::default();
        let mut tokens = Tokens(tree);
        while let Some(token) = tokens.next() {
            if token == "{" {
                condition.visit_node(tokens.next().unwrap_or_default());
            } else if let Some(field) = token.strip_prefix(':') {
                // If the value is a node, its first token is read again.
                let Tokens(rest) = tokens;
                let value = tokens.next().unwrap_or_default();
                condition.visit_field(field, value);
                if value == "{" {
                    tokens = Tokens(rest);
                }
            }
        }
        condition
    }

    fn visit_node(&mut self, kind: &str) {
        if ROW_ONLY_NODES.contains(&kind) {
            return;
        }
        self.note_obstacle(match kind {
            "SUBLINK" => "reads other rows by a subquery".to_owned(),
            "SQLVALUEFUNCTION" => {
                "depends on the session or the time, as current_user and current_date do".to_owned()
            }
            "COERCEVIAIO" => "converts a value to another type through its text".to_owned(),
            kind => format!("contains an expression that larder does not know ({kind})"),
        });
    }

    fn visit_field(&mut self, name: &str, value: &str) {
        // Values that are no numbers, as those of flags, belong to none of these fields.
        let oid = value.parse().unwrap_or(0);
        match name {
            // A function's oid is 0 where the node calls none.
            "funcid" | "opfuncid" | "hashfuncid" | "negfuncid" | "elemfuncid" if oid != 0 => {
                self.functions.push(oid);
            }
            "opno" => self.operators.push(oid),
            "varattno" if oid == 0 => {
                self.note_obstacle("reads the whole row or a system column".into())
            }
            "varno" if oid != 1 => self.note_obstacle("reads another table".into()),
            "varlevelsup" if value != "0" => self.note_obstacle("reads another query's row".into()),
            name if is_type(name) && oid >= FIRST_USER_OID => self.types.push(oid),
            _ => {}
        }
    }

    fn note_obstacle(&mut self, obstacle: String) {
        self.obstacle.get_or_insert(obstacle);
    }
}

/// Whether a field of this name holds a type: `consttype`, `typeId`, `array_typeid`, but not `vartypmod`, `typeMod`.
fn is_type(name: &str) -> bool {
    name.contains("type") && !name.ends_with("Mod")
}

/// The tokens of a node tree: braces, parentheses, and the words between them, which end at white space. A backslash
/// escapes the character after it (`pg_strtok` in PostgreSQL's `read.c`).
#[derive(Clone, Copy)]
struct Tokens<'t>(&'t str);

impl<'t> Tokens<'t> {
    fn next(&mut self) -> Option<&'t str> {
        let text = self.0.trim_ascii_start();
        let mut escaped = false;
        let end = text.char_indices().find(|&(at, character)| {
            let special = matches!(character, '(' | ')' | '{' | '}');
            let ends = !escaped && at > 0 && (special || character.is_ascii_whitespace());
            escaped = !escaped && character == '\\';
            ends
        });
        let length = match text.chars().next()? {
            '(' | ')' | '{' | '}' => 1,
            _ => end.map_or(text.len(), |(at, _)| at),
        };
        let (token, rest) = text.split_at(length);
        self.0 = rest;
        Some(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `owner = 'a'`, as PostgreSQL 15 writes it.
    const OWN_COLUMN: &str = "{OPEXPR :opno 98 :opfuncid 67 :opresulttype 16 :opretset false :opcollid 0 \
        :inputcollid 100 :args ({VAR :varno 1 :varattno 2 :vartype 25 :vartypmod 65540 :varcollid 100 :varlevelsup 0 \
        :varnosyn 1 :varattnosyn 2 :location 29} {CONST :consttype 25 :consttypmod -1 :constcollid 100 :constlen -1 \
        :constbyval false :constisnull false :location 37 :constvalue 5 [ 20 0 0 0 97 ]}) :location 35}";

    fn obstacle(tree: &str) -> String {
        PolicyCondition::read(tree).obstacle.unwrap_or_default()
    }

    #[test]
    fn own_columns_and_constants_are_no_obstacle() {
        let expected = PolicyCondition {
            functions: vec![67],
            operators: vec![98],
            ..PolicyCondition::default()
        };
        assert_eq!(PolicyCondition::read(OWN_COLUMN), expected);
    }

    #[test]
    fn nodes_are_found_wherever_they_stand() {
        for (place, kind) in [
            (":arg {SUBLINK", "subquery"),
            (":args ({SUBLINK", "subquery"),
            (":a {VAR :varno 1} :b {SUBLINK", "subquery"),
            (":args ({CONST} {SQLVALUEFUNCTION", "current_user"),
            (":arg {COERCEVIAIO :arg {VAR", "through its text"),
            (":arg {MERGESUPPORTFUNC", "MERGESUPPORTFUNC"),
        ] {
            let tree = format!("{{BOOLEXPR {place} :location 1}} :location 2}}");
            assert!(obstacle(&tree).contains(kind), "{tree}");
        }
    }

    #[test]
    fn only_columns_of_the_row_are_read() {
        let read = |from, to| obstacle(&OWN_COLUMN.replace(from, to));
        assert!(read(":varattno 2", ":varattno 0").contains("whole row"));
        assert!(read(":varattno 2", ":varattno -2").contains("system column"));
        assert!(read(":varno 1", ":varno 2").contains("another table"));
        assert!(read(":varlevelsup 0", ":varlevelsup 1").contains("another query"));
    }

    #[test]
    fn functions_operators_and_types_are_named() {
        let tree = "{SCALARARRAYOPEXPR :opno 17000 :opfuncid 17001 :hashfuncid 0 :args ({FUNCEXPR :funcid 1299 \
            :funcresulttype 17002 :args <>} {ARRAYEXPR :array_typeid 17003 :element_typeid 25} {CASETESTEXPR :typeId \
            17004 :typeMod 70000} {RELABELTYPE :resulttype 25 :resulttypmod 655366})}";
        let expected = PolicyCondition {
            functions: vec![17001, 1299],
            operators: vec![17000],
            types: vec![17002, 17003, 17004],
            obstacle: None,
        };
        assert_eq!(PolicyCondition::read(tree), expected);
    }

    #[test]
    fn escaped_characters_are_no_nodes() {
        let mut tokens = Tokens(r#"{ALIAS :aliasname a\{SUBLINK\ b\\ :colnames ("id" "x\)")}"#);
        let read: Vec<&str> = std::iter::from_fn(|| tokens.next()).collect();
        let expected = [
            "{",
            "ALIAS",
            ":aliasname",
            r"a\{SUBLINK\ b\\",
            ":colnames",
            "(",
            r#""id""#,
            r#""x\)""#,
            ")",
            "}",
        ];
        assert_eq!(read, expected);
    }
}
