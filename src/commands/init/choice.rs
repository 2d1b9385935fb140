//! The question which tables to serve.

use std::collections::BTreeSet;
use std::io::{BufRead, Write};

use anyhow::{Context, bail};

use crate::commands::init::summary::rows;
use crate::resource::suggest::survey::Survey;
use crate::resource::suggest::{SuggestedResource, Suggestion};
use crate::unseen::escaped;

/// Lists the tables of `suggestion` and reads which ones are wanted; `None`: all.
///
/// # Errors
/// If nothing more can be read or written.
pub(super) fn ask(
    suggestion: &Suggestion,
    survey: &Survey,
    input: &mut impl BufRead,
    output: &mut impl Write,
) -> anyhow::Result<Option<BTreeSet<u32>>> {
    let offered: Vec<&SuggestedResource> = suggestion.active().collect();
    let mut list = "Tables that can be served, with their estimated rows:\n".to_owned();
    for (number, resource) in offered.iter().enumerate() {
        let table = &resource.row.table;
        let mut surveyed = survey.tables.iter();
        let known = surveyed.find(|surveyed| surveyed.name == *table);
        let known = known.map_or(0.0, |surveyed| surveyed.rows);
        let name = escaped(&table.to_string());
        list.push_str(&format!("  {:>4}  {name}  {}\n", number + 1, rows(known)));
    }
    output
        .write_all(list.as_bytes())
        .context("writing to the terminal")?;
    loop {
        let question = "Which ones? Numbers such as 1,3-5, or Enter for all: ";
        output
            .write_all(question.as_bytes())
            .and_then(|()| output.flush())
            .context("writing to the terminal")?;
        // A line that is not UTF-8 is no number, either.
        let mut answer = Vec::new();
        if input
            .read_until(b'\n', &mut answer)
            .context("reading the answer")?
            == 0
        {
            bail!("no answer; --yes takes all tables");
        }
        let answer = String::from_utf8_lossy(&answer);
        if answer.trim().is_empty() {
            return Ok(None);
        }
        match numbers(&answer, offered.len()) {
            Ok(numbers) => {
                let chosen = numbers.iter().filter_map(|number| offered.get(number - 1));
                return Ok(Some(
                    chosen.map(|resource| resource.row.table.oid).collect(),
                ));
            }
            Err(why) => output
                .write_all(format!("{why}\n").as_bytes())
                .context("writing to the terminal")?,
        }
    }
}

/// The numbers in `text`, from 1 to `last`.
fn numbers(text: &str, last: usize) -> Result<BTreeSet<usize>, String> {
    let mut numbers = BTreeSet::new();
    let parts = text.split([',', ' ']).map(str::trim);
    for part in parts.filter(|part| !part.is_empty()) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            let number = text.trim().parse::<usize>().ok();
            number.filter(|number| (1..=last).contains(number))
        };
        match (number(from), number(to)) {
            (Some(from), Some(to)) if from <= to => numbers.extend(from..=to),
            _ => {
                let part = escaped(part);
                return Err(format!(
                    "{part} is no number from 1 to {last}, and no range of them"
                ));
            }
        }
    }
    if numbers.is_empty() {
        return Err(format!("expected numbers from 1 to {last}"));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::catalogue::TableName;
    use crate::resource::suggest::SuggestedRow;
    use crate::resource::suggest::survey::SurveyedTable;

    fn table(oid: u32) -> TableName {
        TableName {
            oid,
            schema: "public".into(),
            name: format!("t\n{oid}"),
        }
    }

    fn resource(oid: u32, off: Option<String>) -> SuggestedResource {
        SuggestedResource {
            name: format!("t{oid}"),
            key: None,
            off,
            filters: Vec::new(),
            by: Vec::new(),
            read_only: None,
            depth: None,
            row: SuggestedRow {
                table: table(oid),
                fields: Vec::new(),
                left_out: Vec::new(),
                needed: Vec::new(),
                not_deleted: None,
                children: Vec::new(),
                lookups: Vec::new(),
            },
        }
    }

    /// What is chosen, and what was shown.
    fn asked(input: impl AsRef<[u8]>) -> (anyhow::Result<Option<BTreeSet<u32>>>, String) {
        let suggestion = Suggestion {
            resources: vec![
                resource(7, None),
                resource(8, Some("doubt".into())),
                resource(9, None),
            ],
            left_out: Vec::new(),
        };
        let survey = Survey {
            tables: vec![SurveyedTable {
                name: table(9),
                kind: 'r',
                rows: 1234.0,
                extension: None,
                is_usable: true,
                is_readable: true,
                unreadable_columns: Vec::new(),
            }],
            ..Survey::default()
        };
        let mut shown = Vec::new();
        let chosen = ask(&suggestion, &survey, &mut input.as_ref(), &mut shown);
        (chosen, String::from_utf8(shown).unwrap())
    }

    #[test]
    fn tables_are_chosen_by_number() {
        let (chosen, shown) = asked("3\n2\n");
        assert_eq!(chosen.unwrap(), Some([9].into()));
        assert!(
            shown.contains("2  public.t\\n9  about 1234 rows\n"),
            "{shown}"
        );
        assert!(shown.contains("3 is no number from 1 to 2"), "{shown}");
        // Neither ends the command.
        assert_eq!(asked(",\n1\n").0.unwrap(), Some([7].into()));
        assert_eq!(asked(b"\xff\n1\n").0.unwrap(), Some([7].into()));
        assert_eq!(asked("\n").0.unwrap(), None);
        assert!(asked("").0.is_err());
    }

    #[test]
    fn numbers_and_ranges_are_read() {
        let read = |text| numbers(text, 5).map(|numbers| numbers.into_iter().collect::<Vec<_>>());
        assert_eq!(read("1, 3-5\n"), Ok(vec![1, 3, 4, 5]));
        assert_eq!(read("2 2,1"), Ok(vec![1, 2]));
        for wrong in [
            ",",
            " , ",
            "0",
            "6",
            "3-1",
            "x",
            "1-",
            "-",
            "99999999999999999999",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
