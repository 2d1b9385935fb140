//! Analyses a condition on a row, or the expression of a virtual generated column, by the text of its node tree
//! (`pg_policy.polqual`, `pg_attrdef.adbin`).
//!
//! The row alone decides a condition that consists of the row's own columns, constants, and PostgreSQL's own immutable
//! functions and operators. This module lists the kinds of nodes that such a condition may have. A kind that is not
//! listed (a subquery, `current_user`, a parameter, a conversion through text, or one of a later version of PostgreSQL)
//! is an obstacle. [`find_dependences`] checks the functions, operators and types.

use sqlx::Row;
use sqlx::postgres::PgConnection;

use crate::source::SourceError;

/// The first oid that is not of PostgreSQL's own objects (`FirstNormalObjectId`).
const FIRST_USER_OID: u32 = 16384;

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

/// Nodes for which the same holds in a condition that PostgreSQL has found immutable: it has checked the functions that
/// convert a value through its text or to JSON, which the node does not name. It has not checked into which type a value of
/// JSON is converted (`contain_mutable_functions_checker` in clauses.c).
pub(super) const ROW_ONLY_IF_IMMUTABLE: [&str; 10] = [
    "COERCEVIAIO",
    "MINMAXEXPR",
    "MINMAX",
    "JSONEXPR",
    "JSONCONSTRUCTOREXPR",
    "JSONISPREDICATE",
    "JSONVALUEEXPR",
    "JSONFORMAT",
    "JSONBEHAVIOR",
    "JSONRETURNING",
];

/// Finds for each tree the first of its functions (trees `$1`, oids `$2`), operators (`$3`, `$4`) and types (`$5`, `$6`) whose
/// result may depend on more than its arguments. `$7` is the first oid that is not of PostgreSQL's own objects.
///
/// A function with a text search configuration is declared immutable, but reads the catalogue. PostgreSQL's own
/// functions of arrays, ranges and rows call functions of the elements' type; enums have none of their own, nor have
/// arrays of them, and domains over these and over PostgreSQL's own types. Of PostgreSQL's own types only those are given
/// that a text is converted to.
const DEPENDENT_SQL: &str = "\
    select distinct on (d.tree) d.tree, d.text from ( \
      select w.tree, 1 as kind, w.place, \
        format('calls %s()', coalesce(nullif(n.nspname, 'pg_catalog') || '.', '') || p.proname) as text \
      from unnest($1::int8[], $2::int8[]) with ordinality w (tree, oid, place) left join pg_proc p on p.oid::int8 = w.oid \
        left join pg_namespace n on n.oid = p.pronamespace \
      where (w.oid < $7 and p.provolatile = 'i' and not exists (select from unnest(p.proargtypes) a (oid) \
        join pg_type t on t.oid = a.oid join pg_proc o on o.oid = t.typoutput where o.prosrc ~ '^reg[a-z]+out$')) is not true \
      union all \
      select w.tree, 2, w.place, format('uses operator %s', o.oid::regoperator) \
      from unnest($3::int8[], $4::int8[]) with ordinality w (tree, oid, place) left join pg_operator o on o.oid::int8 = w.oid \
        left join pg_proc p on p.oid = o.oprcode \
      where (w.oid < $7 and p.oid::int8 < $7 and p.provolatile = 'i') is not true \
      union all \
      select w.tree, 3, w.place, format('uses type %s', format_type(w.oid::oid, null)) \
      from unnest($5::int8[], $6::int8[]) with ordinality w (tree, oid, place) where not exists (with recursive part (oid) as ( \
        select w.oid union all select case t.typtype when 'd' then t.typbasetype else t.typelem end::int8 \
          from part join pg_type t on t.oid::int8 = part.oid where part.oid >= $7 \
          and (t.typtype = 'd' or t.typtype = 'b' and t.typcategory = 'A' and t.typelem <> 0)) \
        select from part left join pg_type t on t.oid::int8 = part.oid left join pg_proc i on i.oid = t.typinput \
        where part.oid < $7 and (w.oid >= $7 or i.prosrc !~ '^reg[a-z]+in$') or t.typtype = 'e') \
    ) d order by d.tree, d.kind, d.place";

/// Finds the first of the collations `$1` and types `$2` that none of the columns with the types `$3` has. The elements, base
/// types and arrays of a column's type are its own, too.
const UNBOUND_SQL: &str = "\
    with recursive own (oid) as (select unnest($3::int8[]) union select part.oid::int8 from own \
      join pg_type t on t.oid::int8 = own.oid cross join lateral (values (t.typbasetype), (t.typelem), (t.typarray)) part (oid)) \
    select text from ( \
      select 1 as kind, w.place, format('collation %s', w.oid::oid::regcollation) as text \
        from unnest($1::int8[]) with ordinality w (oid, place) \
      union all select 2, w.place, format('type %s', format_type(w.oid::oid, null)) \
        from unnest($2::int8[]) with ordinality w (oid, place) where not exists (select from own where own.oid = w.oid) \
    ) d order by kind, place limit 1";

/// The objects that a condition names, and the first part of it that the row alone does not decide.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ConditionTree {
    /// The functions that it calls, and those behind its operators.
    functions: Vec<u32>,
    /// Its operators.
    operators: Vec<u32>,
    /// The types of its values that are not PostgreSQL's own, and those that JSON is converted to.
    types: Vec<u32>,
    /// The collations that are not PostgreSQL's own and by which it compares or changes texts.
    collations: Vec<u32>,
    /// The types of the columns that it reads.
    column_types: Vec<u32>,
    /// The collations of these columns.
    column_collations: Vec<u32>,
    /// The first part that the row alone does not decide. The text continues a sentence about the
    /// condition.
    obstacle: Option<String>,
}

impl ConditionTree {
    /// Reads a node tree as PostgreSQL writes it. Nodes of the kinds `accepted` are no obstacle either.
    pub(super) fn read(tree: &str, accepted: &[&str]) -> Self {
        let mut condition = Self::default();
        let mut tokens = Tokens(tree);
        let mut kind = "";
        // Whether a value is null depends on nothing that its type has.
        let mut is_tested_for_null = false;
        while let Some(token) = tokens.next() {
            if token == "{" {
                let above = std::mem::replace(&mut kind, tokens.next().unwrap_or_default());
                is_tested_for_null = above == "NULLTEST" && kind == "VAR";
                if !accepted.contains(&kind) {
                    condition.visit_node(kind);
                }
            } else if token == "}" {
                is_tested_for_null = false;
            } else if let Some(field) = token.strip_prefix(':') {
                // If the value is a node, its first token is read again.
                let Tokens(rest) = tokens;
                let value = tokens.next().unwrap_or_default();
                condition.visit_field(field, value);
                if !is_tested_for_null && is_type(field) {
                    condition.visit_type(value);
                }
                if value == "{" {
                    tokens = Tokens(rest);
                }
            }
        }
        condition
    }

    /// The oids of the types of its values that are not PostgreSQL's own.
    pub(super) fn types(&self) -> Vec<i64> {
        signed(&self.types)
    }

    /// Finds what the condition depends on besides the row. The text continues a sentence about the condition.
    pub(super) async fn find_dependence(
        &self,
        connection: &mut PgConnection,
    ) -> Result<Option<String>, SourceError> {
        let found = find_dependences(connection, std::slice::from_ref(self)).await?;
        Ok(found.into_iter().next().flatten())
    }

    /// Finds a collation or a type that a user has made, and that none of the columns which the condition reads has. If
    /// PostgreSQL records no dependency of the condition on it, it may be replaced unnoticed. Returns its kind and name.
    pub(super) async fn find_unbound(
        &self,
        connection: &mut PgConnection,
    ) -> Result<Option<String>, SourceError> {
        let of_columns = &self.column_collations;
        let collations = self.collations.iter();
        let foreign = collations.filter(|collation| !of_columns.contains(collation));
        let found = sqlx::query_scalar(UNBOUND_SQL)
            .bind(foreign.copied().map(i64::from).collect::<Vec<_>>())
            .bind(self.types())
            .bind(signed(&self.column_types))
            .fetch_optional(connection)
            .await?;
        Ok(found)
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
            "varcollid" => self.column_collations.push(oid),
            "inputcollid" if oid >= FIRST_USER_OID => self.collations.push(oid),
            "typid" => self.types.push(oid),
            _ => {}
        }
        if name == "vartype" {
            self.column_types.push(oid);
        }
    }

    fn visit_type(&mut self, value: &str) {
        let oid = value.parse().unwrap_or(0);
        if oid >= FIRST_USER_OID {
            self.types.push(oid);
        }
    }

    fn note_obstacle(&mut self, obstacle: String) {
        self.obstacle.get_or_insert(obstacle);
    }
}

/// Finds for each of `trees` what it depends on besides the row, by one statement. A text continues a sentence about the
/// condition.
pub(super) async fn find_dependences(
    connection: &mut PgConnection,
    trees: &[ConditionTree],
) -> Result<Vec<Option<String>>, SourceError> {
    // The name of a function tells the user more than the kind of the node.
    let mut found: Vec<Option<String>> = trees.iter().map(|tree| tree.obstacle.clone()).collect();
    let mut statement = sqlx::query(DEPENDENT_SQL);
    let parts: [fn(&ConditionTree) -> &Vec<u32>; 3] = [
        |tree| &tree.functions,
        |tree| &tree.operators,
        |tree| &tree.types,
    ];
    for part in parts {
        let numbered = (0i64..).zip(trees);
        let oids =
            numbered.flat_map(|(number, tree)| part(tree).iter().map(move |oid| (number, *oid)));
        let (numbers, oids): (Vec<i64>, Vec<i64>) =
            oids.map(|(number, oid)| (number, i64::from(oid))).unzip();
        statement = statement.bind(numbers).bind(oids);
    }
    let statement = statement.bind(i64::from(FIRST_USER_OID));
    for row in statement.fetch_all(connection).await? {
        let number: i64 = row.try_get("tree")?;
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        if let Some(found) = found.get_mut(number) {
            *found = Some(row.try_get("text")?);
        }
    }
    Ok(found)
}

fn signed(oids: &[u32]) -> Vec<i64> {
    oids.iter().copied().map(i64::from).collect()
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
        ConditionTree::read(tree, &[]).obstacle.unwrap_or_default()
    }

    #[test]
    fn own_columns_and_constants_are_no_obstacle() {
        let expected = ConditionTree {
            functions: vec![67],
            operators: vec![98],
            column_types: vec![25],
            column_collations: vec![100],
            ..ConditionTree::default()
        };
        assert_eq!(ConditionTree::read(OWN_COLUMN, &[]), expected);
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
        let expected = ConditionTree {
            functions: vec![17001, 1299],
            operators: vec![17000],
            types: vec![17002, 17003, 17004],
            ..ConditionTree::default()
        };
        assert_eq!(ConditionTree::read(tree, &[]), expected);
    }

    #[test]
    fn conversions_through_text_are_accepted_if_they_are_immutable() {
        let tree = "{COERCEVIAIO :arg {OPEXPR :opno 3477 :opfuncid 3214} :resulttype 17005 :coerceformat 1}";
        let read = ConditionTree::read(tree, &ROW_ONLY_IF_IMMUTABLE);
        assert_eq!((read.obstacle, read.types), (None, vec![17005]));
        // `json_value(…, '$' returning regclass)` looks up a name, and PostgreSQL calls it immutable.
        let tree = "{JSONEXPR :op 2 :format {JSONFORMAT :format_type 0} :returning {JSONRETURNING :typid 2205 :typmod -1} \
            :on_error {JSONBEHAVIOR :btype 0}}";
        let read = ConditionTree::read(tree, &ROW_ONLY_IF_IMMUTABLE);
        assert_eq!((read.obstacle, read.types), (None, vec![2205]));
    }

    #[test]
    fn collations_count_that_decide_a_result() {
        let tree = OWN_COLUMN
            .replace(":inputcollid 100", ":inputcollid 17000")
            .replace(":varcollid 100", ":varcollid 17001");
        let read = ConditionTree::read(&tree, &[]);
        assert_eq!(read.collations, [17000]);
        assert_eq!(read.column_collations, [17001]);
        let read = ConditionTree::read(OWN_COLUMN, &[]);
        assert!(read.collations.is_empty());
    }

    #[test]
    fn null_is_null_in_every_type() {
        let column = "{VAR :varno 1 :varattno 2 :vartype 17000 :location 1}";
        let tree = format!("{{NULLTEST :arg {column} :nulltesttype 1 :argisrow false}}");
        assert!(ConditionTree::read(&tree, &[]).types.is_empty());
        let cast = tree.replace(
            column,
            &format!("{{RELABELTYPE :arg {column} :resulttype 17001}}"),
        );
        assert_eq!(ConditionTree::read(&cast, &[]).types, [17000, 17001]);
        let outside = format!("{{RELABELTYPE :arg {tree} :resulttype 17001}}");
        assert_eq!(ConditionTree::read(&outside, &[]).types, [17001]);
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
